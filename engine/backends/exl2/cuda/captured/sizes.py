"""Chooses the captured batch size with the fastest pass. Does only arithmetic."""

from collections.abc import Mapping, Sequence

NOISE = 0.02  # relative: a larger size must be faster by this much
LEAST_JOINT, FEWER = 8, 1.6  # rows, and the least ratio of two sizes, of joint passes


def least_faster(usual: Mapping[int, float], other: Mapping[int, float]) -> int | None:
    """Returns the smallest size from which on all passes take less time according to `other` than
    according to `usual`, or None if there is no such size. Both map sizes to seconds.
    """
    found = None
    for size in sorted(usual, reverse=True):
        if other[size] >= usual[size] * (1 - NOISE):
            break
        found = size
    return found


def joint_sizes(sizes: Sequence[int]) -> list[int]:
    """Returns the sizes for passes of decode steps and prompts together. There are fewer, because
    prompts have many shapes.
    """
    found: list[int] = []
    for size in sorted(sizes, reverse=True):
        if not found or LEAST_JOINT <= size <= found[-1] / FEWER:
            found.append(size)
    return found[::-1]


class Sizes:
    """Batch sizes and the time that a pass of each size takes. Batches between two sizes are
    padded. A larger size may be faster, because exllamav2 uses another method above a certain
    number of rows.
    """

    def __init__(self, seconds: Mapping[int, float], max_rows: int) -> None:
        """`seconds`: the time of a pass without context, by size. At least one size is `max_rows`
        or more.
        """
        self.seconds = dict(sorted(seconds.items()))
        # By number of rows: the smallest sufficient size, and larger sizes that are faster than all
        # smaller ones.
        self._faster = [self._candidates(rows) for rows in range(max_rows + 1)]
        self.seconds_a_token = 0.0  # of attention, for each token of a row's context

    @property
    def used(self) -> list[int]:
        """The sizes that `fit` can return."""
        return sorted({size for sizes in self._faster[1:] for size in sizes})

    def fit(self, rows: int, context: int) -> int:
        """Returns the fastest size for `rows`. `context`: the number of context tokens in each
        padding row.
        """
        sizes = self._faster[rows]
        if len(sizes) == 1:
            return sizes[0]
        a_row = self.seconds_a_token * context
        return min(sizes, key=lambda size: self.seconds[size] + a_row * (size - rows))

    def _candidates(self, rows: int) -> list[int]:
        found: list[int] = []
        for size, seconds in self.seconds.items():
            if size >= rows and (not found or seconds < self.seconds[found[-1]] * (1 - NOISE)):
                found.append(size)
        return found
