"""Functions that change logits in place before a token is drawn."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float32]


def fast_fill_cpu_ones_bool(tensor: torch.Tensor) -> None:
    tensor.fill_(True)


def fast_fadd_cpu(a: torch.Tensor, b: torch.Tensor) -> None:
    """Add `b`, repeated as needed, to `a`. Raises RuntimeError unless the size of `b` divides the
    size of `a`.
    """
    if a.dtype != torch.float32 or b.dtype != torch.float32:
        raise RuntimeError(f"a and b must be float32, not {a.dtype} and {b.dtype}")
    a.view(-1, b.numel()).add_(b.view(1, -1))


def logit_filter_exclusive(filter: torch.Tensor, exclusive_lists: Sequence[Sequence[int]]) -> None:
    """In each row of `filter`, (batch, vocabulary), keep only the token ids in that row's list.

    The C++ code needs sorted lists, and writes past the end of the row for an id beyond the
    vocabulary. This function takes any order, and raises IndexError for such an id or an empty
    list.
    """
    if filter.shape[0] != len(exclusive_lists):
        raise RuntimeError(f"{len(exclusive_lists)} lists for a batch of {filter.shape[0]}")
    for row, token_ids in zip(filter.numpy(), exclusive_lists, strict=True):
        ids = np.asarray(token_ids, dtype=np.int64)
        if not ids.size or ids.min() < 0 or ids.max() >= row.size:
            raise IndexError("a list is empty or contains a token id outside the vocabulary")
        kept = row[ids]
        row[:] = False
        row[ids] = kept


def apply_rep_penalty(
    sequence: torch.Tensor,
    penalty_max: float,
    sustain: int,
    decay: int,
    alpha_frequency: float,
    alpha_presence: float,
    logits: torch.Tensor,
) -> None:
    """Penalize the tokens in `sequence`, (batch, tokens), by changing `logits`, (batch, 1,
    vocabulary).

    Each penalty applies in full to the last `sustain` tokens (-1: all), and fades to nothing over
    the `decay` tokens before them. The repetition penalty (a factor) and the presence penalty apply
    once to each token, according to its last occurrence. The frequency penalty applies to every
    occurrence.
    """
    if sequence.shape[0] != logits.shape[0]:
        raise RuntimeError(f"{sequence.shape[0]} sequences for {logits.shape[0]} rows of logits")
    vocab_size = logits.shape[-1]
    length = sequence.shape[-1]
    full = length if sustain == -1 else sustain
    start = max(length - full - decay, 0)
    for tokens, row in zip(sequence.numpy(), logits.numpy().reshape(-1, vocab_size), strict=True):
        ids = tokens[start:]
        fade = _fade(ids.size, full, decay)
        # Ids beyond the vocabulary stand for embeddings. As unsigned numbers, negative ids are
        # beyond it too.
        valid = ids.view(np.uint64) < vocab_size
        if not valid.all():
            ids, fade = ids[valid], fade if fade is None else fade[valid]
        _penalize(row, ids, fade, penalty_max, alpha_frequency, alpha_presence)


def _fade(count: int, full: int, decay: int) -> Floats | None:
    """Strength of the penalties for each of the last `count` tokens; None: full strength."""
    if decay == 0 or count <= full:
        return None
    age = np.arange(count - 1, -1, -1)
    return (1.0 - np.maximum(age - max(full, 0), 0) / decay).astype(np.float32)


def _penalize(
    row: Floats,
    ids: npt.NDArray[np.int64],
    fade: Floats | None,
    repetition: float,
    frequency: float,
    presence: float,
) -> None:
    # No sort, and no pass over the vocabulary: this runs for every token of every job. With equal
    # indices the last assignment wins, which is the newest place.
    values = row[ids]
    strength = 1.0 if fade is None else fade
    factor = 1.0 + (repetition - 1.0) * strength
    with np.errstate(divide="ignore", invalid="ignore"):  # for a penalty of 0
        values = np.where(values > 0, values / factor, values * factor)
    row[ids] = values - presence * strength
    if frequency != 0:
        # A Python float would make it float64, 30 times slower.
        np.subtract.at(row, ids, np.float32(frequency) * np.float32(strength))
