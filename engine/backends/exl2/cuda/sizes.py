"""Chooses the captured batch size with the shortest time. Only arithmetic."""

from collections.abc import Mapping

NOISE = 0.02  # relative: a larger size must be faster by this much


def least_faster(usual: Mapping[int, float], other: Mapping[int, float]) -> int | None:
    """The least size from which on passes take less time by `other` than by `usual`; None if there
    is no such size. Both give seconds by size.
    """
    found = None
    for size in sorted(usual, reverse=True):
        if other[size] >= usual[size] * (1 - NOISE):
            break
        found = size
    return found


class Sizes:
    """Batch sizes and the time of a pass of each. A smaller batch is padded. A larger size may be
    faster, because above some number of rows exllamav2 computes in another way.
    """

    def __init__(self, seconds: Mapping[int, float], max_rows: int) -> None:
        """`seconds`: time of a pass by size, without context; one size is at least `max_rows`."""
        self._seconds = dict(sorted(seconds.items()))
        # By number of rows: the smallest sufficient size, and larger sizes that are faster than all
        # smaller ones.
        self._faster = [self._candidates(rows) for rows in range(max_rows + 1)]
        self.seconds_a_token = 0.0  # of attention, for a token of a row's context

    @property
    def used(self) -> list[int]:
        """The sizes that `fit` can return."""
        return sorted({size for sizes in self._faster[1:] for size in sizes})

    def fit(self, rows: int, context: int) -> int:
        """The fastest size for `rows`. `context`: tokens of context of each padding row."""
        sizes = self._faster[rows]
        if len(sizes) == 1:
            return sizes[0]
        a_row = self.seconds_a_token * context
        return min(sizes, key=lambda size: self._seconds[size] + a_row * (size - rows))

    def _candidates(self, rows: int) -> list[int]:
        found: list[int] = []
        for size, seconds in self._seconds.items():
            if size >= rows and (not found or seconds < self._seconds[found[-1]] * (1 - NOISE)):
                found.append(size)
        return found
