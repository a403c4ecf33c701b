"""What lowers or raises the logits of certain tokens before any filter: in place, on rows of
logits, (rows, vocabulary), float32; token ids of the text so far as (rows, tokens).
"""

import math

import numpy as np
import torch

MAX_MATCH = 50  # tokens; DRY's penalty grows no more beyond
MAX_DRY = 1e30  # what float32 can still subtract


def penalize_repetition(
    logits: torch.Tensor, token_ids: torch.Tensor, penalty: float, full: int, decay: int
) -> None:
    """Divide positive logits of tokens that occurred, multiply negative ones (Keskar et al. 2019,
    "CTRL"). In full for the last `full` tokens, -1 for all; fading over `decay` before (exllamav2).
    """
    if full >= 0:
        token_ids = token_ids[:, max(token_ids.shape[-1] - full - decay, 0) :]
    count = token_ids.shape[-1]
    if count == 0:
        return
    factor: float | torch.Tensor = penalty
    if decay and 0 <= full < count:
        age = torch.arange(count - 1, -1, -1)
        factor = 1 + (penalty - 1) * (1 - (age - full).clamp(min=0) / decay)
    values = logits.gather(-1, token_ids)
    penalized = torch.where(values > 0, values / factor, values * factor)
    # A token's strongest penalty counts, that of its newest place.
    strongest = "amin" if penalty > 1 else "amax"
    logits.scatter_reduce_(-1, token_ids, penalized, strongest, include_self=False)


def penalize_frequency(
    logits: torch.Tensor, token_ids: torch.Tensor, frequency: float, presence: float
) -> None:
    """Take `presence` from tokens that occurred, and `frequency` for each time (OpenAI's API)."""
    if token_ids.shape[-1] == 0:
        return
    if presence:
        logits.scatter_(-1, token_ids, logits.gather(-1, token_ids) - presence)
    if frequency:
        logits.scatter_add_(-1, token_ids, torch.full(token_ids.shape, -frequency))


def penalize_continuations(
    logits: torch.Tensor,
    token_ids: torch.Tensor,
    is_breaker: torch.Tensor,
    multiplier: float,
    base: float,
    allowed_length: int,
) -> None:
    """DRY, of one row: take multiplier * base ** (length - allowed_length) from each token that
    would go on a repetition of at least `allowed_length` tokens, by the longest such. Nothing is
    repeated across a breaker (Weidmann 2024, pull request 5637 of text-generation-webui).
    """
    ids, breaks = token_ids[0].numpy(), is_breaker.numpy()
    if ids.size < 2 or breaks[ids[-1]]:
        return
    ends = np.flatnonzero(ids[:-1] == ids[-1])
    ends = ends[~breaks[ids[ends + 1]]]
    lengths = np.ones(ends.size, dtype=np.int64)
    live = np.arange(ends.size)
    for length in range(1, min(MAX_MATCH, ids.size)):
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
    penalties = (multiplier * base**excess).clamp(max=MAX_DRY).float()[None]
    following = torch.from_numpy(ids[ends[repeated] + 1])[None]
    penalized = logits.gather(-1, following) - penalties
    logits.scatter_reduce_(-1, following, penalized, "amin", include_self=False)


def guide(logits: torch.Tensor, scale: float) -> torch.Tensor:
    """Classifier-free guidance (Sanchez et al. 2023, "Stay on topic"): from (2, vocabulary), behind
    the prompt and behind the negative prompt, one row.
    """
    logprobs = logits.log_softmax(-1)
    return torch.lerp(logprobs[1:], logprobs[:1], scale)


def keep_only(logits: torch.Tensor, token_ids: torch.Tensor) -> None:
    kept = logits[:, token_ids]
    logits.fill_(-math.inf)
    logits[:, token_ids] = kept
