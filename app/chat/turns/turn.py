"""One turn of a stored conversation. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pydantic_core

OVERHEAD = 1024  # bytes of a turn in addition to its texts


@dataclass(slots=True, eq=False)
class Turn:
    """One response, with the messages that its request and answer have added to the conversation.

    A turn refers to the turn that it continues, so the whole conversation is kept, with each text
    stored only once.
    """

    identifier: str  # the response's identifier
    owner: str  # the owner, who may read the turn
    client: str  # the client whose share of memory the turn uses
    messages: tuple[bytes, ...]  # JSON lists of messages: the request's, then the answer's
    body: bytes  # the response as JSON
    previous: "Turn | None"
    length: int = field(init=False)  # bytes of all messages in the conversation
    stored: float = field(init=False, default=0.0)  # when it was stored, by the store's clock
    # Its entry in the store, and the turns that continue it.
    num_holders: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.length = sum(map(len, self.messages))
        if self.previous is not None:
            self.length += self.previous.length
            self.client = self.previous.client  # a conversation counts toward one client's share

    @property
    def num_bytes(self) -> int:
        """The memory that this turn takes, without the turns that it continues."""
        return OVERHEAD + len(self.body) + sum(map(len, self.messages))

    def conversation(self) -> list[dict[str, Any]]:
        """All messages of the conversation so far, as in a chat. Takes time linear in `length`."""
        return [
            message
            for turn in reversed(list(self._turns()))
            for part in turn.messages
            for message in pydantic_core.from_json(part, cache_strings="none")
        ]

    def _turns(self) -> Iterator["Turn"]:
        turn: Turn | None = self
        while turn is not None:
            yield turn
            turn = turn.previous
