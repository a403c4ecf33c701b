"""Matches token sequences against cached pages, and held-back text against stop strings."""

import functools
import itertools

import numpy as np
import numpy.typing as npt
import torch

Buffer = bytes | npt.NDArray[np.uint8]

NO_MATCH = -1
PARTIAL_MATCH = -2


def count_match(a: torch.Tensor, b: torch.Tensor, max_a: int) -> int:
    """Returns the number of equal token ids at the start of two (1, n) tensors, at most `max_a`."""
    # Called for every page of the cache; most pages are empty.
    length = min(max_a, a.shape[1], b.shape[1])
    if length <= 0:
        return 0
    different = a[0, :length].numpy() != b[0, :length].numpy()
    first = int(different.argmax())
    return first if different[first] else length


def partial_strings_match(match: Buffer, offsets: Buffer, strings: Buffer) -> int:
    """Returns the index of the first of `strings` that `match` contains; -2 if `match` ends with
    the beginning of one; otherwise -1. The first string with a full *or partial* match decides.

    All text is in UTF-32. `offsets`: int32, in bytes; there is one more offset than there are
    strings. Empty strings are skipped, whereas the C++ code reads past their end.
    """
    text = bytes(match).decode("utf-32-le")
    for string in _unpack(bytes(offsets), bytes(strings)):
        index = text.find(string)
        if index >= 0:
            return index
        # The longest overlap comes first in the text; any overlap gives the same result.
        for length in range(1, min(len(string), len(text) + 1)):
            if text.endswith(string[:length]):
                return PARTIAL_MATCH
    return NO_MATCH


@functools.lru_cache(maxsize=256)
def _unpack(offsets: bytes, strings: bytes) -> tuple[str, ...]:
    """Cached, because a job sends the same strings with every token."""
    ends = np.frombuffer(offsets, dtype=np.int32).tolist()
    return tuple(
        strings[start:end].decode("utf-32-le")
        for start, end in itertools.pairwise(ends)
        if start != end
    )
