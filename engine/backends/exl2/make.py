"""Creates the generator for a model's settings. Used on the engine thread."""

import math
from typing import Any

import torch

from switchyard.engine.backends.exl.detokenizer import NoText
from switchyard.engine.backends.exl.loaded import LoadedModel
from switchyard.engine.backends.exl2.generator import Generator
from switchyard.engine.backends.exl2.guessing.generator import GuessingGenerator
from switchyard.engine.config import ModelConfig
from switchyard.engine.memory.lengths import CHUNK_SIZES, MAX_STEP
from switchyard.engine.schedule.budget import Budget
from switchyard.engine.stats import Work

MOST = {"cpu": 128, "cuda": 2048}  # prompt tokens in an iteration while prompts wait
GAP = {"cpu": math.inf, "cuda": 0.05}  # seconds, by device


def make_budget(config: ModelConfig, device: str, chunk_size: int | None = None) -> Budget:
    most = config.max_chunk_size or MOST[device]
    gap = GAP[device] if config.max_gap_ms is None else config.max_gap_ms / 1000
    return Budget(chunk_size or CHUNK_SIZES[device], most, gap)


def make_generator(
    config: ModelConfig,
    loaded: LoadedModel,
    device: str,
    vocab_size: int,
    work: Work,
    budget: Budget,
) -> Any:
    """`vocab_size`: the tokenizer's vocabulary size. `work`: the counters to increment."""
    make = GuessingGenerator if config.has_draft else Generator
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
