"""Which captured size of a batch computes so many rows the soonest. Nothing but arithmetic."""

from collections.abc import Mapping

NOISE = 0.02  # of a time: a larger size must be that much faster to be taken


class Sizes:
    """Of batches, by the time that a pass of each takes. A smaller batch is filled up, and a larger
    size may be the faster: beyond some number of rows exllamav2 computes otherwise.
    """

    def __init__(self, seconds: Mapping[int, float], max_rows: int) -> None:
        """`seconds`: of a pass of each size, without context. There is a size of at least
        `max_rows`.
        """
        self._seconds = dict(sorted(seconds.items()))
        # For each number of rows: the smallest, and those larger ones that are faster than all
        # smaller ones.
        self._faster = [self._candidates(rows) for rows in range(max_rows + 1)]
        self.seconds_a_token = 0.0  # that attention takes for a token of context, in a row

    @property
    def used(self) -> list[int]:
        """Those that are ever taken."""
        return sorted({size for sizes in self._faster[1:] for size in sizes})

    def fit(self, rows: int, context: int) -> int:
        """`context`: tokens that each row sees which only fills up."""
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
