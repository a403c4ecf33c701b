"""What a rule of a job says of its next token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Only:
    """This token, however unlikely."""

    token_id: int


@dataclass(frozen=True, slots=True)
class Without:
    """Any other than these."""

    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Among:
    """Those whose bit is set: uint8, the lowest bit first."""

    bits: torch.Tensor


class Rule(Protocol):
    """Engine thread. What it raises ends its job."""

    @property
    def is_ready(self) -> bool:
        """Whether `limit` has its answer at once."""

    @property
    def is_done(self) -> bool:
        """No token may follow."""

    def limit(self) -> Only | Without | Among | None:
        """None: whatever the model likes."""

    def accept(self, token_id: int) -> None:
        """The next token has come, and is no end."""
