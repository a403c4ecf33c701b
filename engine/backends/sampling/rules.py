"""Rules that limit a job's next token."""

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
    """Only the tokens whose bits are set in an array of uint8. The lowest bit of the first number
    belongs to token 0.
    """

    bits: torch.Tensor


class Rule(Protocol):
    """Limits the tokens of one job. Used on the engine thread. If a rule raises an exception, the
    job ends.
    """

    @property
    def is_ready(self) -> bool:
        """Whether the next token can be drawn. `limit` must not be called before that."""

    @property
    def is_done(self) -> bool:
        """Whether no token may follow."""

    def limit(self) -> Only | Without | Among | None:
        """Returns the limit on the next token, or None if there is no limit."""

    def begin(self) -> None:
        """Called when the next token is about to be drawn. Calls to `limit` and `accept` follow."""

    def wait(self, seconds: float) -> None:
        """Wait until the rule is ready, for at most this many seconds."""

    def accept(self, token_id: int) -> None:
        """Take the next token, which must not be an end token."""

    def close(self) -> None:
        """Called when the job has ended. Idempotent."""
