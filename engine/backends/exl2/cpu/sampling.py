"""Draws one token from a row of logits."""

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from switchyard.engine.backends.exl2.cpu import truncation
from switchyard.engine.backends.exl2.cpu.truncation import Floats, Indices

Filter = Callable[[Floats], Indices]

NO_LOGIT = -1e38  # a logit at or below this bans its token

# Share of the probability mass that a draw uses: rounding must not carry it past the end.
DRAW_SCALE = 0.9998

BLOCK = 256  # candidates in a partial sum


def sample_basic(
    logits: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    top_a: float,
    min_p: float,
    tfs: float,
    typical: float,
    random: float,
    output_tokens: torch.Tensor,
    output_probs: torch.Tensor,
    output_kprobs: torch.Tensor,
    output_ktokens: torch.Tensor,
    logit_filter: torch.Tensor,
    mirostat: bool,
    mirostat_mu: Sequence[float],
    mirostat_tau: float,
    mirostat_eta: float,
    post_temperature: float,
    xtc_mask: torch.Tensor,
    xtc_probability: float = 0.0,
    xtc_threshold: float = 0.1,
    min_temp: float = 0.0,
    max_temp: float = 0.0,
    temp_exponent: float = 1.0,
    smoothing_factor: float = 0.0,
    skew: float = 0.0,
) -> list[float]:
    """Draw a token for each row of `logits`, (batch, 1, vocabulary). `random`: a number in [0, 1).

    Writes `output_tokens` and `output_probs`, (batch, 1). Unless they are meta tensors, it also
    writes `output_ktokens` and `output_kprobs`, (batch, 1, n): the n most probable tokens after all
    filters, padded with other ids at probability 0. Returns the new `mirostat_mu`. Filters apply in
    the order logit_filter, temperature, top_k, top_p, top_a, min_p, tfs, typical, mirostat,
    post_temperature, XTC.

    Differences from the C++ code: a row with NaN, with an infinite logit, or without a finite one
    raises RuntimeError; a token of probability 0 is never drawn; a post_temperature of 0 is greedy;
    XTC needs no sorted candidates; smoothing is the same for each row; the n most probable tokens
    don't alter the draw.
    """
    rows = logits.numpy().reshape(logits.shape[0], -1)
    tokens, token_probs = output_tokens.numpy(), output_probs.numpy()
    is_greedy = top_k == 1 or temperature < 0.01
    filters: list[Filter] = []
    if not is_greedy:
        filters = _filters(rows.shape[1], top_k, top_p, top_a, min_p, tfs, typical)
    mus = [mu or 2 * mirostat_tau for mu in mirostat_mu]
    for i, row in enumerate(rows):
        if not logit_filter.is_meta:
            row = np.where(logit_filter[i].numpy(), row, np.float32(-np.inf))
        top = _top(row)
        ids: Indices | None = None  # None: the whole vocabulary
        if is_greedy:
            ids, weights = np.array([top]), np.ones(1, dtype=np.float32)
        else:
            weights = _weights(row, row[top], temperature, smoothing_factor)
            last = [partial(truncation.mirostat, mu=mus[i])] if mirostat else []
            if filters or last:
                ids, weights = _truncate(weights, [*filters, *last])
        if weights.size > 1:
            if post_temperature != 1.0 or max_temp > min_temp:
                weights = _reheat(weights, post_temperature, min_temp, max_temp, temp_exponent)
            if xtc_probability > 0:
                mask = xtc_mask.numpy() if ids is None else xtc_mask.numpy()[ids]
                weights = _exclude_top(weights, mask, xtc_probability, xtc_threshold)
        if not output_kprobs.is_meta:
            _write_likeliest(ids, weights, output_ktokens[i, 0], output_kprobs[i, 0])
        point = random
        if skew != 0:
            order = np.argsort(-weights, kind="stable")
            ids, weights = order if ids is None else ids[order], weights[order]
            point = random ** math.exp(-skew)
        index, prob = _draw(weights, point * DRAW_SCALE)
        tokens[i, 0] = index if ids is None else ids[index]
        token_probs[i, 0] = prob
        if mirostat:
            mus[i] += mirostat_eta * (mirostat_tau + math.log2(prob))
        random = _next_random(random)
    return mus


def _filters(
    vocab_size: int,
    top_k: int,
    top_p: float,
    top_a: float,
    min_p: float,
    tfs: float,
    typical: float,
) -> list[Filter]:
    """The filters that are on, in order. A value out of range is off, as in the C++."""
    filters: list[Filter] = []
    if 0 < top_k < vocab_size:
        filters.append(partial(truncation.top_k, count=top_k))
    if 0 < top_p < 1:
        filters.append(partial(truncation.top_p, limit=top_p))
    if top_a > 0:
        filters.append(partial(truncation.top_a, factor=top_a))
    if 0 < min_p < 1:
        filters.append(partial(truncation.min_p, factor=min_p))
    if 0 < tfs < 1:
        filters.append(partial(truncation.tail_free, limit=tfs))
    if 0 < typical < 1:
        filters.append(partial(truncation.typical, limit=typical))
    return filters


def _top(row: Floats) -> int:
    """Index of the largest logit, the first of equal ones."""
    top = int(row.argmax())  # of a NaN, if the row has one
    if not NO_LOGIT < row[top] < np.inf:
        raise RuntimeError(f"no token can be drawn: the largest logit is {row[top]}")
    return top


def _weights(row: Floats, top: np.float32, temperature: float, smoothing_factor: float) -> Floats:
    """Softmax without the division by the sum."""
    weights = row - top
    if smoothing_factor > 0:
        with np.errstate(over="ignore"):  # for a banned token's -1e30
            weights *= -weights
        temperature /= smoothing_factor
    if temperature != 1.0:
        weights *= np.float32(1.0 / temperature)
    np.exp(weights, out=weights)
    return weights


def _truncate(weights: Floats, filters: list[Filter]) -> tuple[Indices, Floats]:
    """The candidates that remain after `filters`, and their probabilities."""
    ids = np.arange(weights.size)
    probs = weights / weights.sum()
    for keep in filters:
        if probs.size > 1:
            kept = keep(probs)
            ids, probs = ids[kept], probs[kept]
            probs /= probs.sum()
    return ids, probs


def _reheat(
    weights: Floats, temperature: float, min_temp: float, max_temp: float, exponent: float
) -> Floats:
    """Temperature applied after the filters. If `max_temp` > `min_temp`, it is dynamic between the
    two: the higher the entropy, the higher.
    """
    if max_temp > min_temp:
        probs = weights / weights.sum()
        probs = probs[probs > 0]
        entropy = max(0.0, -float((probs * np.log(probs)).sum()) / math.log(weights.size))
        temperature = min_temp + (max_temp - min_temp) * entropy**exponent
    # Relative to the largest: otherwise all powers may underflow.
    heated: Floats = (weights / weights.max()) ** np.float32(1.0 / max(temperature, 1e-6))
    return heated


def _exclude_top(
    weights: Floats, mask: npt.NDArray[np.bool_], probability: float, threshold: float
) -> Floats:
    """XTC without a random draw: each candidate that XTC would exclude with `probability` is scaled
    by its chance to stay. Those are all candidates above `threshold` but the least probable.
    """
    probs = weights / weights.sum()
    excluded = (probs >= threshold) & mask
    if excluded.sum() <= 1:
        return weights
    indices = np.flatnonzero(excluded)
    excluded[indices[probs[indices].argmin()]] = False
    mass = float(probs[excluded].sum())
    kept_scale = 1.0 + probability * mass / (1.0 - mass)
    scaled: Floats = probs * np.where(excluded, 1.0 - probability, kept_scale).astype(np.float32)
    return scaled


def _write_likeliest(
    ids: Indices | None, weights: Floats, tokens: torch.Tensor, probs: torch.Tensor
) -> None:
    order = truncation.top_k(weights, min(tokens.numel(), weights.size))
    listed = order if ids is None else ids[order]
    spare = np.setdiff1d(np.arange(tokens.numel() + listed.size), listed)
    missing = tokens.numel() - listed.size
    tokens.numpy()[:] = np.concatenate((listed, spare[:missing]))
    probs.numpy()[: listed.size] = weights[order] / weights.sum()
    probs.numpy()[listed.size :] = 0.0


def _draw(weights: Floats, point: float) -> tuple[int, float]:
    """Returns the index of the candidate at `point` in [0, 1) of the cumulative weight, and its
    probability.
    """
    if weights.size == 1:
        return 0, 1.0
    # Sums of blocks first: a cumulative sum over the whole vocabulary would dominate the time.
    starts = np.arange(0, weights.size, BLOCK)
    sums = np.cumsum(np.add.reduceat(weights, starts), dtype=np.float64)
    # Above 0: at 0 the first candidate would be drawn, whatever its weight.
    target = max(point * float(sums[-1]), sys.float_info.min)
    block = int(sums.searchsorted(target))
    rest = target - float(sums[block - 1]) if block else target
    candidates = weights[block * BLOCK : (block + 1) * BLOCK]
    index = int(np.cumsum(candidates, dtype=np.float64).searchsorted(rest))
    if index == candidates.size:  # rounding of the block's sum
        index = int(np.flatnonzero(candidates)[-1])
    return block * BLOCK + index, float(candidates[index] / sums[-1])


def _next_random(random: float) -> float:
    """The C++'s generator, for the next row of a batch."""
    value = random
    for _ in range(10):
        value = (value + 1.337 + random) ** 2 % 1.0
    return value
