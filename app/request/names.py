"""What other servers call the fields of requests. Pure."""

import functools
from collections.abc import Mapping
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
    others: tuple[str, ...] = ()  # TabbyAPI, Ollama, or older versions of these


def names_of(kind: type[BaseModel], server: Server) -> dict[str, str]:
    """Of its fields, where they are others."""
    called = {
        field: getattr(one, server)
        for field, info in kind.model_fields.items()
        for one in info.metadata
        if isinstance(one, Called)
    }
    return {field: name for field, name in called.items() if name is not None}


@functools.cache
def all_names_of(kind: type[BaseModel]) -> Mapping[str, str]:
    """That other servers have for its fields, each to what the field is called here."""
    names: dict[str, str] = {}
    for base in kind.__mro__:  # a field may be said anew, without its names
        for field, info in getattr(base, "model_fields", {}).items():
            own = kind.model_fields[field].alias or field
            for one in info.metadata:
                if isinstance(one, Called):
                    every = {field, one.kobold, one.textgen, one.llamacpp, *one.others}
                    names |= {name: own for name in every - {None, own} if name is not None}
    return names
