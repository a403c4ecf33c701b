"""Searches the texts of a vocabulary's tokens. Can be used on any thread."""

import bisect
import itertools
from collections.abc import Sequence
from functools import lru_cache

from switchyard.engine.sampling import BannedString


class Vocabulary:
    def __init__(self, pieces: Sequence[bytes]) -> None:
        """`pieces`: the bytes that each token adds to a text."""
        self.pieces = pieces
        self._sorted = sorted((piece, i) for i, piece in enumerate(pieces) if piece)
        self._joined = b"".join(piece for piece, _ in self._sorted)
        lengths = (len(piece) for piece, _ in self._sorted)
        # Where each piece starts there, and where the last one ends
        self._starts = list(itertools.accumulate(lengths, initial=0))
        # Many requests send the same strings: each is searched once.
        self.ban = lru_cache(maxsize=1024)(self._ban)
        self.containing = lru_cache(maxsize=1024)(self._containing)

    def beginning_with(self, prefix: bytes) -> tuple[int, ...]:
        """The tokens whose text begins with `prefix`."""
        start = bisect.bisect_left(self._sorted, (prefix,))
        if start == len(self._sorted) or not self._sorted[start][0].startswith(prefix):
            return ()
        end = bisect.bisect_right(
            self._sorted, prefix, start, key=lambda item: item[0][: len(prefix)]
        )
        return tuple(i for _, i in self._sorted[start:end])

    def _containing(self, data: bytes) -> tuple[int, ...]:
        """The tokens that contain all of `data`. Searches the joined bytes once, because searching
        each piece takes far longer.
        """
        found, at = [], self._joined.find(data)
        while 0 <= at < len(self._joined):
            index = bisect.bisect_right(self._starts, at) - 1
            end = self._starts[index + 1]
            if at + len(data) <= end:  # else it reaches into the next token
                found.append(self._sorted[index][1])
            at = self._joined.find(data, end)
        return tuple(found)

    def _ban(self, text: str) -> BannedString:
        data = text.encode()
        completing = [self.beginning_with(data[i:]) for i in range(1, len(data))]
        return BannedString(data, self.containing(data), ((), *completing))
