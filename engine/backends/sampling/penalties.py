"""Penalties, which are applied in place, before all filters, to rows of logits, (rows, vocabulary),
float32. Parameters are columns, (rows, 1), unless noted.
"""

import math

import numpy as np
import torch

MAX_MATCH = 50  # tokens; DRY's penalty grows no further
MAX_DRY = 1e30  # float32 can still subtract it


def penalize_repetition(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    ages: torch.Tensor,
    penalty: torch.Tensor,
    full: torch.Tensor,
    decay: torch.Tensor,
) -> None:
    """Divide the positive logits of tokens that have occurred by `penalty`, and multiply their
    negative logits by it (Keskar et al. 2019, "CTRL"). The penalty applies in full to the last
    `full` tokens (-1: all), and fades over the `decay` tokens before them, as in exllamav2.

    `token_ids`: the tokens in the prompt and the completion, (rows, tokens); `ages`: for each
    token, the number of tokens after it, or a number below 0 in padding.
    """
    beyond = (ages - full).clamp(min=0)
    fading = (1 - beyond / decay.clamp(min=1)).clamp(min=0)
    strength = torch.where((ages < full) | (full < 0), 1.0, torch.where(decay > 0, fading, 0.0))
    factor = 1 + (penalty - 1) * strength.masked_fill(ages < 0, 0.0)
    values = logits.gather(-1, token_ids)
    penalized = torch.where(values > 0, values / factor, values * factor)
    _keep_strongest(logits, token_ids, penalized, penalty > 1)


def penalize_frequency(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    is_counted: torch.Tensor,
    frequency: torch.Tensor,
    presence: torch.Tensor,
) -> None:
    """Subtract `presence` from the logits of tokens that have occurred, and `frequency` for each
    occurrence (OpenAI's API). `token_ids`, `is_counted`: (rows, tokens).
    """
    lowered = logits.gather(-1, token_ids) - presence * is_counted
    _keep_strongest(logits, token_ids, lowered, presence > 0)
    logits.scatter_add_(-1, token_ids, -frequency * is_counted)


def _keep_strongest(
    logits: torch.Tensor, token_ids: torch.Tensor, values: torch.Tensor, is_lowering: torch.Tensor
) -> None:
    """Write `values` to the logits of `token_ids`. If a token occurs several times, its lowest
    value wins in rows with `is_lowering`, and its highest value in others. An occurrence without a
    change has the token's own logit as its value.
    """
    lowest = logits.scatter_reduce(-1, token_ids, values, "amin", include_self=False)
    highest = logits.scatter_reduce(-1, token_ids, values, "amax", include_self=False)
    torch.where(is_lowering, lowest, highest, out=logits)


def penalize_continuations(
    logits: torch.Tensor,
    token_ids: np.ndarray,
    is_breaker: np.ndarray,
    multiplier: float,
    base: float,
    allowed_length: int,
) -> None:
    """DRY, for one row. Subtract multiplier * base ** (length - allowed_length) from the logit of
    each token that would continue a repetition of at least `allowed_length` tokens. The length is
    that of the longest such repetition. No repetition extends across a breaker (Weidmann 2024, pull
    request 5637 of text-generation-webui).

    `token_ids`: (tokens,); `is_breaker`: (vocabulary,).
    """
    ids, breaks = token_ids, is_breaker
    if ids.size < 2 or breaks[ids[-1]]:
        return
    ends = np.flatnonzero(ids[:-1] == ids[-1])
    ends = ends[~breaks[ids[ends + 1]]]
    lengths = np.ones(ends.size, dtype=np.int64)
    live = np.arange(ends.size)
    for length in range(1, MAX_MATCH):
        token = ids[-1 - length]
        if breaks[token]:
            break
        live = live[ends[live] >= length]
        live = live[ids[ends[live] - length] == token]
        if not live.size:
            break
        lengths[live] = length + 1
    repeated = np.flatnonzero(lengths >= allowed_length)
    if not repeated.size:
        return
    excess = torch.from_numpy((lengths[repeated] - allowed_length).astype(np.float64))
    penalties = (multiplier * base**excess).clamp(max=MAX_DRY).float()[None].to(logits.device)
    following = torch.from_numpy(ids[ends[repeated] + 1])[None].to(logits.device)
    penalized = logits.gather(-1, following) - penalties
    logits.scatter_reduce_(-1, following, penalized, "amin", include_self=False)


def guide(logits: torch.Tensor, negative: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Apply classifier-free guidance (Sanchez et al. 2023, "Stay on topic"), which combines the
    logits after prompts with those after negative prompts.
    """
    wanted, unwanted = logits.log_softmax(-1), negative.log_softmax(-1)
    return unwanted + scale * (wanted - unwanted)


def keep_only(logits: torch.Tensor, token_ids: torch.Tensor) -> None:
    """`token_ids`: (tokens,), the same for all rows."""
    kept = logits[:, token_ids]
    logits.fill_(-math.inf)
    logits[:, token_ids] = kept
