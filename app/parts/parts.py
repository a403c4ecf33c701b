"""The parts of an answer: text, thoughts, tool calls and their arguments."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of the thoughts, without the tags around them."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The beginning of a call to the function `name`. `index` counts calls of one choice from 0."""

    index: int
    identifier: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the arguments of call `index`: the model's JSON, unchanged."""

    index: int
    text: str


Part = Text | Reasoning | ToolCall | Arguments
