"""Rules: limits of a job's next token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Only:
    """Only this token, however improbable."""

    token_id: int


@dataclass(frozen=True, slots=True)
class Without:
    """All tokens except these."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Among:
    """The tokens whose bit is set: uint8, the lowest bit first."""

    bits: torch.Tensor


class Rule(Protocol):
    """A limit of one job's tokens. Engine thread. An exception ends the job."""

    @property
    def is_ready(self) -> bool:
        """Whether the next token can be drawn. Until then `limit` must not be called."""

    @property
    def is_done(self) -> bool:
        """Whether no token may follow."""

    def limit(self) -> Only | Without | Among | None:
        """The limit of the next token; None: no limit."""

    def begin(self) -> None:
        """The next token is about to be drawn: `limit` and `accept` follow."""

    def wait(self, seconds: float) -> None:
        """Wait until it is ready, for at most this time."""

    def accept(self, token_id: int) -> None:
        """Take the next token, not an end token."""

    def close(self) -> None:
        """The job has ended. Idempotent."""
