"""Draws for rows that keep few tokens. Considers only the most probable tokens instead of the whole
vocabulary.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from switchyard.engine.backends.sampling.sampler import Sampler
from switchyard.engine.backends.sampling.transfer import upload

NUM_CANDIDATES = 128  # more than MAX_FEW, for ties with the last kept token; sorts fast
LEAST_TOP_P = 1e-9  # a top_p of 0 keeps the most probable token


class RowSettings(NamedTuple):
    """The settings of a row's draw, as numbers."""

    temperature: float
    top_k: float
    top_p: float
    min_p: float
    point: float


def draw(samplers: Sequence[Sampler], logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns tokens and each row's highest logit, (rows,). `is_few` must be true for all
    samplers.
    """
    settings = read(samplers, logits.shape[-1])
    return choose(upload(settings, torch.float64, logits.device), logits)


def read(samplers: Sequence[Sampler], vocab_size: int) -> list[RowSettings]:
    """Returns the settings of the next draw, with its random numbers."""
    size = min(NUM_CANDIDATES, vocab_size)
    return [
        RowSettings(
            one.temperature,
            min(one.sampling.top_k, size),
            max(one.sampling.top_p, LEAST_TOP_P),
            one.sampling.min_p,
            one.point(),
        )
        for one in samplers
    ]


def choose(columns: torch.Tensor, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Does the same as `top_k`, `top_p`, `min_p` and `draw` from `filters`, in that order. Tokens
    that tie with the last kept token are kept too, up to NUM_CANDIDATES tokens in total. `columns`:
    the `RowSettings`, (rows, 5), float64. This function never waits, so a CUDA graph can capture
    it.
    """
    size = min(NUM_CANDIDATES, logits.shape[-1])
    temperature, top_k, top_p, min_p, points = columns[:, :, None].unbind(1)
    best = logits.topk(size)
    values = best.values.double() / temperature
    values.masked_fill_(values < values.gather(-1, top_k.long() - 1), -math.inf)
    probs = values.softmax(-1)
    before = probs.cumsum(-1) - probs
    is_kept = (before < top_p) & (probs >= min_p * probs[:, :1])
    # Ties are kept or dropped together.
    least = probs.masked_fill(~is_kept, math.inf).amin(-1, keepdim=True)
    probs.masked_fill_(probs < least, 0.0)
    token_ids, order = best.indices.int().sort(-1)  # topk's order of ties varies
    sums = probs.gather(-1, order).cumsum(-1)
    places = torch.searchsorted(sums, points * sums[:, -1:], right=True)
    places.clamp_(max=size - 1)  # for logits that are NaN
    return token_ids.gather(-1, places)[:, 0].long(), best.values[:, 0]
