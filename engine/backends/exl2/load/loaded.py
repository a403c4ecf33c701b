"""A model in memory, with all that belongs to it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

logger = logging.getLogger(__name__)


class Passes(Protocol):
    """A faster way than the model's own to a pass of few tokens."""

    num_rows: int  # that the last `run` computed, with those that filled it up

    def capture(self) -> None:
        """Get ready, while nothing of the cache is in use."""

    def run(
        self, token_ids: torch.Tensor, positions: Sequence[int], pages: np.ndarray
    ) -> torch.Tensor:
        """Logits, (rows, 1, padded vocabulary), that the next run may overwrite. `token_ids`,
        (rows,), wherever they are; `positions`: of them; `pages`: of the cache, (rows, pages),
        int32.
        """

    def fit(self, length: int) -> int:
        """Tokens in each row of the pass that computes at least `length` of prompts."""

    def compute(self, token_ids: torch.Tensor, starts: Sequence[int], pages: np.ndarray) -> bool:
        """Keys and values of `token_ids`, (rows, tokens), on the host; whether it could be done.
        `starts`: where each row begins; `pages`: of the cache, (rows, pages), int32.
        """

    def close(self) -> None:
        """Let go of what is not the model's."""


@dataclass(slots=True)
class LoadedModel:
    model: Any
    cache: Any
    cache_mode: str  # how it holds keys and values
    passes: Passes | None = None
    draft_model: Any = None  # that guesses tokens
    draft_cache: Any = None
    loras: list[Any] = field(default_factory=list)
    is_paged: bool = True  # else one job at a time

    def warn_of_a_small_cache(self, max_seq_len: int) -> None:
        if max_seq_len > self.cache.max_seq_len:
            logger.warning(
                "the context of %d tokens is more than the cache of %d: longer requests are"
                " refused unless cache_tokens is raised",
                max_seq_len,
                self.cache.max_seq_len,
            )

    def unload(self) -> None:
        """Let go of all. The memory is free once nobody else holds any of it."""
        for lora in self.loras:
            lora.unload()
        self.loras.clear()
        if self.passes is not None:
            self.passes.close()
        for model in (self.draft_model, self.model):
            if model is not None:
                model.unload()
        self.model = self.cache = self.draft_model = self.draft_cache = self.passes = None
