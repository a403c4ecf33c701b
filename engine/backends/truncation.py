"""Which tokens may be drawn: top-k, nucleus and min-p as published, on one row of logits.

The library's own top_p drops the token that crosses the limit and keeps less likely ones, and its
min_p lets a stale candidate back in; so these run first and the library draws from what is left.
"""

import math

import torch

CANDIDATES = 256  # a nucleus is rarely larger, and to find that many is much cheaper than to sort


def truncate(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Set every logit to -inf, in place, that the filters exclude. Ties at a border are kept.

    `logits`: (vocabulary,) float32. In the order of Hugging Face's transformers: temperature,
    then top-k, then top-p (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration":
    the smallest set of the likeliest tokens with at least that much probability), then min-p
    (Nguyen et al. 2024, "Min-p Sampling": at least that share of the likeliest's probability).
    """
    if 0 < top_k < logits.numel():
        kth = torch.topk(logits, top_k).values[-1]
        logits[logits < kth] = -math.inf
    if top_p < 1.0:
        scaled = logits / temperature
        logits[scaled < _nucleus_border(scaled, top_p)] = -math.inf
    if min_p > 0.0:
        logits[logits < logits.max() + temperature * math.log(min_p)] = -math.inf


def _nucleus_border(scaled: torch.Tensor, top_p: float) -> float:
    """The least likely logit of the nucleus."""
    log_total = torch.logsumexp(scaled, dim=-1)
    for num_candidates in (CANDIDATES, scaled.numel()):
        best = torch.topk(scaled, min(num_candidates, scaled.numel())).values
        before = torch.exp(best - log_total).cumsum(-1).roll(1)
        before[0] = 0.0  # probability of all that are likelier
        inside = int((before < top_p).sum())
        if inside < len(best):
            break
    return float(best[max(inside, 1) - 1])
