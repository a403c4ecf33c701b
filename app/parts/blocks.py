"""Parts of an answer to its blocks, for formats that tell where each begins and ends. Pure."""

from dataclasses import dataclass, field
from typing import Literal

from switchyard.app.parts.parts import Arguments, Part, Reasoning, Text, ToolCall

Kind = Literal["text", "reasoning", "call"]


@dataclass(slots=True)
class Block:
    """What stands together in an answer: text, thoughts, or one call and its arguments."""

    index: int
    kind: Kind
    identifier: str = ""  # of a call
    name: str = ""  # of a call
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockOpened:
    """`block` is empty as yet, whatever it holds by the time that this is looked at."""

    block: Block


@dataclass(frozen=True, slots=True)
class BlockGrown:
    block: Block
    text: str


@dataclass(frozen=True, slots=True)
class BlockClosed:
    block: Block


Step = BlockOpened | BlockGrown | BlockClosed


class Blocks:
    """The blocks of one answer as its parts come; only the last may be open."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.open: Block | None = None

    def add(self, part: Part) -> list[Step]:
        match part:
            case Text(text):
                return self._grow("text", text)
            case Reasoning(text):
                return self._grow("reasoning", text)
            case ToolCall(_, identifier, name):
                return [*self.close(), self._begin("call", identifier, name)]
            case Arguments(_, text):
                return self._grow("call", text)

    def close(self) -> list[Step]:
        """Nothing more comes for the block that is open, if one is."""
        block, self.open = self.open, None
        return [] if block is None else [BlockClosed(block)]

    def _grow(self, kind: Kind, text: str) -> list[Step]:
        if not text:
            return []
        steps: list[Step] = []
        if self.open is None or self.open.kind != kind:
            steps = [*self.close(), self._begin(kind)]
        assert self.open is not None
        self.open.pieces.append(text)
        return [*steps, BlockGrown(self.open, text)]

    def _begin(self, kind: Kind, identifier: str = "", name: str = "") -> BlockOpened:
        self.open = Block(len(self.blocks), kind, identifier, name)
        self.blocks.append(self.open)
        return BlockOpened(self.open)
