"""Estimates the GPU memory of a model by cache mode, and finds settings with which the model fits.
Does only arithmetic.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from switchyard.engine.config import PAGE_SIZE, CacheMode, ModelConfig
from switchyard.engine.memory.estimate import MODES, Footprint, Memory
from switchyard.engine.model.footprint import measure


@dataclass(frozen=True, slots=True)
class Row:
    """The estimate for one cache mode. Sizes are in bytes."""

    cache_mode: CacheMode
    weights: int
    cache: int
    work_space: int
    total: int
    fits: bool | None  # None without a known GPU
    most_tokens: int | None  # of the largest cache that fits, and that the jobs can use
    copies: int | None  # float16 copies of weights that fit as well


@dataclass(frozen=True, slots=True)
class Plan:
    context: int  # tokens that were asked for, or the model's own
    rows: list[Row]
    settings: dict[str, Any] | None  # with which the model fits, perhaps with a smaller context


def plan(config: ModelConfig, jobs: int, free: Sequence[int], bits: float | None = None) -> Plan:
    """`jobs`: the number of full contexts that the cache holds. `free`: the free bytes of each GPU.
    `bits`: see `measure`. Raises ModelError.
    """
    footprints, lengths = measure(config, bits)
    native = measure(replace(config, max_seq_len=None), bits)[1].max_seq_len
    context = lengths.max_seq_len
    rows = list(each_mode(config, footprints, context, jobs, free, max(native, context)))
    settings = next((_settings(context, jobs, row.cache_mode) for row in rows if row.fits), None)
    if settings is None and any(row.most_tokens for row in rows):
        mode, fitting = _smaller(config, rows, context, jobs, free, bits)
        settings = _settings(fitting, jobs, mode) if fitting else None
    return Plan(context, rows, settings)


def each_mode(
    config: ModelConfig,
    footprints: Sequence[Footprint],
    context: int,
    jobs: int,
    free: Sequence[int],
    native: int,
) -> Iterator[Row]:
    """`native`: the model's longest context, in tokens."""
    tokens = jobs * context
    memory = Memory(config, footprints, free, context)
    for mode in MODES:
        used = memory.place(mode, tokens) if free else []
        most_gpus = 1 if any(one.is_whole for one in footprints) else len(free)
        num_gpus = sum(map(bool, used)) or most_gpus or 1
        weights = sum(one.weights for one in footprints)
        cache = sum(one.cache(mode, tokens) for one in footprints)
        beside = sum(one.beside(mode, tokens) for one in footprints) * num_gpus
        yield Row(
            cache_mode=mode,
            weights=weights,
            cache=cache,
            work_space=beside,
            total=weights + cache + beside,
            fits=bool(used) if free else None,
            most_tokens=min(memory.largest(mode), jobs * native) if free else None,
            copies=sum(memory.unpacked(mode, tokens)) if free else None,
        )


def _smaller(
    config: ModelConfig,
    rows: Sequence[Row],
    asked: int,
    jobs: int,
    free: Sequence[int],
    bits: float | None,
) -> tuple[CacheMode, int]:
    """The cache mode with the longest context that fits, and that context, which is 0 if none
    fits.
    """
    best = max(rows, key=lambda row: row.most_tokens or 0)
    mode, context = best.cache_mode, _pages((best.most_tokens or 0) // jobs)
    if not context:
        return mode, 0
    # The work space of a shorter context is smaller: there is room for some tokens more.
    footprints, _ = measure(replace(config, max_seq_len=context), bits)
    most = Memory(config, footprints, free, context).largest(mode)
    longer = min(_pages(most // jobs), asked)
    footprints, lengths = measure(replace(config, max_seq_len=max(longer, context)), bits)
    memory = Memory(config, footprints, free, lengths.max_seq_len)
    return mode, longer if memory.place(mode, longer * jobs) else context


def _pages(tokens: int) -> int:
    return tokens // PAGE_SIZE * PAGE_SIZE


def _settings(context: int, jobs: int, mode: CacheMode) -> dict[str, Any]:
    return {"max_seq_len": context, "cache_tokens": context * jobs, "cache_mode": [mode]}
