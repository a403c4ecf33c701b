"""Parts of an answer to its blocks, for formats that tell where each begins and ends. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from switchyard.app.parts.parts import Arguments, Part, Reasoning, Text, ToolCall


@dataclass(slots=True)
class Block:
    """What stands together in an answer: text, thoughts, or one call and its arguments."""

    index: int
    kind: Literal["text", "reasoning", "call"]
    identifier: str = ""  # of a call
    name: str = ""  # of a call
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Opened:
    block: Block


@dataclass(frozen=True, slots=True)
class Grown:
    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    block: Block


Step = Opened | Grown | Closed


class Blocks:
    """The blocks of one answer as its parts come; only the last may be open."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.open: Block | None = None

    def add(self, part: Part) -> Iterator[Step]:
        match part:
            case Text(text):
                yield from self._grow("text", text)
            case Reasoning(text):
                yield from self._grow("reasoning", text)
            case ToolCall(_, identifier, name):
                yield from self.close()
                yield self._begin("call", identifier, name)
            case Arguments(_, text):
                yield from self._grow("call", text)

    def close(self) -> Iterator[Step]:
        """Nothing more comes for the block that is open, if one is."""
        if self.open is not None:
            yield Closed(self.open)
            self.open = None

    def _grow(self, kind: Literal["text", "reasoning", "call"], text: str) -> Iterator[Step]:
        if not text:
            return
        if self.open is None or self.open.kind != kind:
            yield from self.close()
            yield self._begin(kind)
        assert self.open is not None
        self.open.pieces.append(text)
        yield Grown(self.open, text)

    def _begin(
        self, kind: Literal["text", "reasoning", "call"], identifier: str = "", name: str = ""
    ) -> Opened:
        self.open = Block(len(self.blocks), kind, identifier, name)
        self.blocks.append(self.open)
        return Opened(self.open)
