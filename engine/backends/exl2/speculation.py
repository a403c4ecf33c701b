"""Speculative decoding: a step checks several draft tokens of a job, and keeps those that the job
would have drawn anyway. Engine thread.
"""

import math
from typing import Any

import torch

from switchyard.engine.backends.exl.detokenizer import NoText
from switchyard.engine.backends.exl.loaded import LoadedModel
from switchyard.engine.backends.exl2.generator import Generator
from switchyard.engine.config import ModelConfig
from switchyard.engine.memory.lengths import CHUNK_SIZES, MAX_STEP
from switchyard.engine.schedule.budget import Budget
from switchyard.engine.stats import Work

MOST = {"cpu": 128, "cuda": 2048}  # tokens of prompts in an iteration, while others wait
GAP = {"cpu": math.inf, "cuda": 0.05}  # seconds, by device


class SpeculativeGenerator(Generator):
    """Drafts only while each decoding job can take drafts.

    The library's generator pairs rows of drafts with jobs, not with their sequences: a job of two
    would get its neighbour's. It also looks for n-grams in prompts that are shorter than one.
    """

    def iterate_ngram_gen(self, results: list[dict[str, Any]]) -> torch.Tensor | None:
        guesses: torch.Tensor | None = None
        if self._can_guess():
            guesses = super().iterate_ngram_gen(results)
        if guesses is not None:
            self._work.drafts += len(guesses)
        return guesses

    def iterate_draftmodel_gen(self, results: list[dict[str, Any]]) -> torch.Tensor | None:
        sequences = [s for job in self.decoding() for s in job.sequences]
        if not sequences:
            return None
        if not self._can_guess():
            self._follow(sequences)
            return None
        guesses: torch.Tensor = super().iterate_draftmodel_gen(results)
        self._work.drafts += len(sequences)  # without the unused rows of the library's buffer
        # A draft model may have more rows of logits than the model has tokens.
        return guesses.clamp_(0, self.model.config.vocab_size - 1)

    def _can_guess(self) -> bool:
        fewest = self.max_ngram - 1 if self.use_ngram_draft else 1
        return all(
            len(job.sequences) == 1 and len(job.sequences[0].sequence_ids) >= fewest
            for job in self.decoding()
        )

    def _follow(self, sequences: list[Any]) -> None:
        """A step of the draft model without a draft, so that its cache has no gaps."""
        tables = [
            torch.tensor([page.page_index for page in s.allocated_pages], dtype=torch.int32)
            for s in sequences
        ]
        block_index = torch.nn.utils.rnn.pad_sequence(tables, batch_first=True)
        lengths = torch.tensor([s.kv_position for s in sequences], dtype=torch.int32)
        token_ids = [s.sequence_ids.torch_slice(s.kv_position, None) for s in sequences]
        self.draft_model.forward_chunk(
            input_ids=torch.cat(token_ids),
            attn_params=self.get_paged_params(len(sequences), block_index, lengths, 1),
            cache=self.draft_cache,
            preprocess_only=True,
        )


def make_budget(config: ModelConfig, device: str) -> Budget:
    most = config.max_chunk_size or MOST[device]
    gap = GAP[device] if config.max_gap_ms is None else config.max_gap_ms / 1000
    return Budget(CHUNK_SIZES[device], most, gap)


def make_generator(
    config: ModelConfig,
    loaded: LoadedModel,
    device: str,
    vocab_size: int,
    work: Work,
    budget: Budget,
) -> Any:
    """`vocab_size`: of the tokenizer. `work`: counters to add to."""
    make = SpeculativeGenerator if config.has_draft else Generator
    generator = make(
        device=torch.device(device),
        vocab_size=vocab_size,
        passes=loaded.passes,
        work=work,
        model=loaded.model,
        cache=loaded.cache,
        tokenizer=NoText(),
        max_batch_size=config.max_batch_size if loaded.is_paged else 1,
        paged=loaded.is_paged,
        max_q_size=MAX_STEP,
        draft_model=loaded.draft_model,
        draft_cache=loaded.draft_cache,
        use_ngram_draft=config.ngram_draft,
        num_draft_tokens=config.num_draft_tokens,
        max_chunk_size=loaded.model.config.max_input_len,
    )
    generator.budget = budget
    if loaded.loras:
        generator.set_loras(loaded.loras)
    return generator
