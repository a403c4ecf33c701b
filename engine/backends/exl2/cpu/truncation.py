"""Truncation filters. Each takes the probabilities of two or more candidates, which add up to 1,
and returns the indices of the candidates to keep.

The rules are those of exllamav2's C++ code, which differs from the papers in places.
"""

import heapq

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

NEGLIGIBLE = 1e-8  # wherever it sorts, the C++ drops smaller ones


def descending(probs: Floats) -> Indices:
    order = np.argsort(-probs, kind="stable")
    return order[probs[order] >= NEGLIGIBLE]


def top_k(probs: Floats, count: int) -> Indices:
    # torch's topk is several times faster than numpy's partition.
    best: Indices = torch.from_numpy(probs).topk(count).indices.numpy()
    return best


def top_p(probs: Floats, limit: float) -> Indices:
    """Keep the most probable candidates whose probabilities sum to at most `limit`, chosen
    greedily: a candidate that would exceed the limit is skipped, unless it would be the only one,
    and less probable candidates that still fit are kept. If probabilities are equal, the result
    depends on the order of candidates.
    """
    heap: list[tuple[float, int]] = []
    total = 0.0
    live = np.flatnonzero(probs >= 1e-6)
    for prob, index in zip(probs[live].tolist(), live.tolist(), strict=True):
        if total > limit and prob < heap[0][0]:
            continue
        heapq.heappush(heap, (prob, index))
        total += prob
        while total > limit and len(heap) > 1:
            total -= heapq.heappop(heap)[0]
    return np.array([index for _, index in sorted(heap, reverse=True)], dtype=np.int64)


def top_a(probs: Floats, factor: float) -> Indices:
    """Unlike in the C++ code, this function and `min_p` never readmit a candidate below the
    threshold.
    """
    top = float(probs.max())
    return np.flatnonzero(probs >= min(factor * top, 1.0) * top)


def min_p(probs: Floats, factor: float) -> Indices:
    return np.flatnonzero(probs >= factor * float(probs.max()))


def tail_free(probs: Floats, limit: float) -> Indices:
    """Keep candidates until the normalized second differences of the probabilities sum to
    `limit`.
    """
    if probs.size < 3:
        return np.arange(probs.size)
    order = descending(probs)
    values = probs[order]
    curvature = np.abs(2 * values[1:-1] - values[:-2] - values[2:])
    total = float(curvature.sum())
    if total == 0.0:
        return order[: curvature.size + 1]
    within = int((np.cumsum(curvature / total) <= limit).sum())
    return order[: within + 1]


def typical(probs: Floats, limit: float) -> Indices:
    """Keep the candidates nearest to the expected surprise, as long as their probabilities sum to
    less than `limit`.
    """
    live = np.flatnonzero(probs >= NEGLIGIBLE)
    values = probs[live]
    surprise = values + np.log(values + 1e-10)
    order = np.argsort(np.abs(surprise - (values * surprise).sum()), kind="stable")
    within = int((np.cumsum(values[order]) < limit).sum())
    return live[order[: max(within, 1)]]


def mirostat(probs: Floats, mu: float) -> Indices:
    """Keep the candidates with a surprise of at most `mu` bits."""
    order = descending(probs)
    within = int((probs[order] >= 2.0**-mu).sum())
    return order[: max(within, 1)]
