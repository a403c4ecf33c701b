"""Names of parameters in other servers' APIs. Pure."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

Server = Literal["kobold", "textgen", "llamacpp", "ollama"]


@dataclass(frozen=True, slots=True)
class Called:
    """Other servers' names for a parameter, in the annotation of its field."""

    kobold: str | None = None  # KoboldAI and KoboldCpp
    textgen: str | None = None  # text-generation-webui
    llamacpp: str | None = None  # llama.cpp
    ollama: str | None = None
    others: tuple[str, ...] = ()  # names in TabbyAPI, or in older versions of the servers above


def names_of(kind: type[BaseModel], server: Server) -> dict[str, str]:
    """The names that `server` has for fields of `kind`, keyed by field, where the names differ."""
    called = {
        field: getattr(one, server)
        for field, info in kind.model_fields.items()
        for one in info.metadata
        if isinstance(one, Called)
    }
    return {field: name for field, name in called.items() if name is not None}


@functools.cache
def all_names_of(kind: type[BaseModel]) -> Mapping[str, str]:
    """All names that other servers have for fields of `kind`, each with the name used here.

    If `kind` withholds a field and replaces it with another, the withheld field's name can be
    another name for its replacement.
    """
    withheld: frozenset[str] = getattr(kind, "withheld", frozenset())
    taken = kind.model_fields.items()
    fields = {info.alias or name for name, info in taken if name not in withheld}
    names: dict[str, str] = {}
    for base in kind.__mro__:  # a subclass may declare a field again without its other names
        for field, info in getattr(base, "model_fields", {}).items():
            own = kind.model_fields[field].alias or field
            for one in info.metadata:
                if isinstance(one, Called):
                    every = {field, one.kobold, one.textgen, one.llamacpp, one.ollama, *one.others}
                    every -= {own, *fields}
                    names |= {name: own for name in every if name is not None}
    names = {name: names.get(own, own) for name, own in names.items()}
    return {name: own for name, own in names.items() if own in fields}
