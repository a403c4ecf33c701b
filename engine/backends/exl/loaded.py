"""A model in memory, with its cache and everything else that generation needs."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from switchyard.engine.backends.sampling.candidates import RowSettings
from switchyard.engine.stats import KeptWeights

logger = logging.getLogger(__name__)


class PromptRows(NamedTuple):
    """Rows of prompt tokens, all of the same length."""

    token_ids: torch.Tensor  # (rows, tokens), on the host
    starts: Sequence[int]  # the position of each row's first token
    pages: np.ndarray  # cache pages, (rows, pages), int32


class Passes(Protocol):
    """Computes short forward passes faster than the model's own code does."""

    num_rows: int  # rows of the last `run`, including padding

    def capture(self, vocab_size: int) -> None:
        """Prepare the passes. The cache must be unused. `vocab_size`: the tokenizer's vocabulary
        size.
        """

    def run(
        self,
        token_ids: torch.Tensor,
        positions: Sequence[int],
        pages: np.ndarray,
        prompts: PromptRows | None = None,
    ) -> torch.Tensor:
        """Returns logits, (rows, 1, padded vocabulary), which are valid until the next run.
        `token_ids`: (rows,), on the host or the device; `positions`: the tokens' positions;
        `pages`: cache pages, (rows, pages), int32. Also computes the keys and values of `prompts`,
        which the rows may read; see `can_join`.
        """

    def can_join(self, prompts: PromptRows, num_rows: int = 0, num_pages: int = 1) -> bool:
        """Whether computing these prompts in a `run` saves time. `num_rows`: 0 for any number of
        rows; `num_pages`: the maximum number of pages of a row.
        """

    def draw(self, settings: Sequence[RowSettings], logits: torch.Tensor) -> torch.Tensor | None:
        """Draws from the `logits` that the last `run` returned. Returns coded tokens, (rows,),
        which are valid until the next draw, or None for any other logits.
        """

    def fit(self, length: int) -> int:
        """Returns the shortest row length of the prompt passes that has room for `length` tokens,
        or `length` itself if there is none.
        """

    def compute(self, prompts: PromptRows) -> bool:
        """Compute keys and values. Returns whether they were computed."""

    def shed(self) -> bool:
        """Release memory that only speeds up passes. Returns whether any was released; if so, call
        `capture` next.
        """

    @property
    def kept(self) -> KeptWeights:
        """The weights that `shed` releases."""

    def close(self) -> None:
        """Release everything except the model."""


@dataclass(slots=True)
class LoadedModel:
    model: Any
    cache: Any
    cache_mode: str  # the format of keys and values
    passes: Passes | None = None
    products: str | None = None  # `own`, or `exllamav2: REASON`; None on a CPU
    draft_model: Any = None  # the model that guesses tokens
    draft_cache: Any = None
    loras: list[Any] = field(default_factory=list)
    is_paged: bool = True  # False: one job at a time

    def warn_of_a_small_cache(self, max_seq_len: int) -> None:
        if max_seq_len > self.cache.max_seq_len:
            logger.warning(
                "the context of %d tokens exceeds the cache of %d tokens: raise cache_tokens,"
                " or requests that exceed the cache are refused",
                max_seq_len,
                self.cache.max_seq_len,
            )

    def warn_of_no_copies(self, asked: float | str) -> None:
        """`asked`: the value of the `unpacked_weights` setting."""
        if not isinstance(asked, str) and not self.kept.num_bytes:
            logger.warning(
                "unpacked_weights is %g, but no float16 copies were made: this model can't"
                " have them, or there is no room",
                asked,
            )

    def shed(self) -> bool:
        """Release memory that only speeds up passes. Returns whether any was released; if so, make
        a new generator.
        """
        return self.passes is not None and self.passes.shed()

    @property
    def kept(self) -> KeptWeights:
        """The weights that `shed` releases."""
        return KeptWeights() if self.passes is None else self.passes.kept

    def unload(self) -> None:
        """Release everything. The memory is free once no other reference is left."""
        for lora in self.loras:
            lora.unload()
        self.loras.clear()
        if self.passes is not None:
            self.passes.close()
        for model in (self.draft_model, self.model):
            if model is not None:
                model.unload()
        self.model = self.cache = self.draft_model = self.draft_cache = self.passes = None
