"""What an answer consists of, in the order in which it comes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Thoughts before the answer, without the tags around them."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call begins, of the function `name`. The first of an answer has index 0."""

    index: int
    identifier: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of call `index`, which are JSON, as the model has written it."""

    index: int
    text: str


Part = Text | Reasoning | ToolCall | Arguments
