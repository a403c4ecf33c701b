"""Draws from the whole vocabulary, after applying the filters in order.

One operation applies a common parameter to all rows; rarer parameters are applied row by row.
"""

import math
from collections.abc import Sequence

import torch

from switchyard.engine.backends.sampling import filters
from switchyard.engine.backends.sampling.sampler import Sampler
from switchyard.engine.backends.sampling.transfer import column, upload


def draw(samplers: Sequence[Sampler], logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens and each row's highest logit, (rows,)."""
    device = logits.device
    tops = logits.amax(-1)
    settings = [s.sampling for s in samplers]
    rare = [(s, logits[i : i + 1]) for i, s in enumerate(samplers) if s.is_rare]
    points = column((s.point() for s in samplers), device, torch.float64)
    for sampler, row in rare:
        _filter_first(sampler, row)
    if any(s.temperature != 1.0 for s in samplers):
        filters.heat(logits, column((s.temperature for s in samplers), device))
    if any(s.top_k for s in settings):
        counts = column((s.top_k for s in settings), device)
        filters.top_k(logits, counts, max(s.top_k for s in settings))
    if any(s.top_p < 1 for s in settings):
        limits = column((s.top_p if s.top_p < 1 else math.inf for s in settings), device)
        filters.top_p(logits, limits)
    for sampler, row in rare:
        if sampler.sampling.top_a:
            filters.top_a(row, sampler.sampling.top_a)
    if any(s.min_p for s in settings):
        filters.min_p(logits, column((s.min_p for s in settings), device))
    for sampler, row in rare:
        _filter_last(sampler, row)
    tokens = filters.draw(logits, points)[:, 0]
    for i, sampler in enumerate(samplers):
        if sampler.is_rare:
            _choose_rare(sampler, logits[i : i + 1], points[i : i + 1], tokens[i : i + 1])
    return tokens, tops


def _filter_first(sampler: Sampler, row: torch.Tensor) -> None:
    s = sampler.sampling
    if s.smoothing_factor:
        filters.smooth(row, s.smoothing_factor, s.smoothing_curve)
    if sampler.is_heated and not s.temperature_last:
        filters.heat_by_entropy(row, s.dynatemp_low, s.dynatemp_high, s.dynatemp_exponent)


def _filter_last(sampler: Sampler, row: torch.Tensor) -> None:
    s = sampler.sampling
    if s.tfs < 1:
        filters.tail_free(row, s.tfs)
    if s.typical_p < 1:
        filters.typical(row, s.typical_p)
    if sampler.is_excluding:
        protected = upload(sampler.protected, torch.long, row.device)
        filters.exclude_top_choices(row, s.xtc_threshold, protected)
    if s.temperature_last:
        if sampler.is_heated:
            filters.heat_by_entropy(row, s.dynatemp_low, s.dynatemp_high, s.dynatemp_exponent)
        elif not sampler.is_greedy:
            filters.heat(row, s.temperature)
    if s.mirostat:
        filters.mirostat(row, sampler.max_surprise)


def _choose_rare(
    sampler: Sampler, row: torch.Tensor, point: torch.Tensor, token: torch.Tensor
) -> None:
    """Replace, in place, a `token` that needs another kind of draw, and note its logprob."""
    s = sampler.sampling
    if sampler.is_greedy:
        token.copy_(row.argmax(-1))
    elif s.skew:
        token.copy_(filters.draw(row, point, s.skew)[:, 0])
    if s.mirostat:  # based on the probability among the remaining tokens, as in llama.cpp
        sampler.note_logprob(row.log_softmax(-1)[0, token].item())
