"""Groups the parts of an answer into blocks, for formats that mark the beginning and end of each
block. Pure.
"""

from dataclasses import dataclass, field
from typing import Literal

from switchyard.app.parts.parts import Arguments, Part, Reasoning, Text, ToolCall

Kind = Literal["text", "reasoning", "call"]


@dataclass(slots=True)
class Block:
    """A run of parts of one kind: text, thoughts, or one call with its arguments."""

    index: int
    kind: Kind
    identifier: str = ""  # only of a call
    name: str = ""  # only of a call
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class BlockOpened:
    """An empty block has begun. `block` grows afterwards, perhaps even before a reader gets this
    step.
    """

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
    """The blocks of one answer, built as its parts arrive. At most the last block is open."""

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
        """Closes the open block, if there is one."""
        block, self.open = self.open, None
        return [] if block is None else [BlockClosed(block)]

    def _grow(self, kind: Kind, text: str) -> list[Step]:
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
