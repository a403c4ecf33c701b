"""What other servers call the fields of requests. Pure."""

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

Server = Literal["kobold", "textgen", "llamacpp"]


@dataclass(frozen=True, slots=True)
class Called:
    """Stands in the annotation of a field that another server has by another name."""

    kobold: str | None = None  # KoboldAI and KoboldCpp
    textgen: str | None = None  # text-generation-webui
    llamacpp: str | None = None  # llama.cpp


def names_of(kind: type[BaseModel], server: Server) -> dict[str, str]:
    """Of its fields, where they are others."""
    called = {
        field: getattr(one, server)
        for field, info in kind.model_fields.items()
        for one in info.metadata
        if isinstance(one, Called)
    }
    return {field: name for field, name in called.items() if name is not None}
