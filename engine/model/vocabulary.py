"""What a vocabulary's tokens are as text, and which have to do with a string. Any thread."""

import bisect
from collections.abc import Sequence
from functools import lru_cache

from switchyard.engine.job import BannedString


class Vocabulary:
    def __init__(self, pieces: Sequence[bytes]) -> None:
        """`pieces`: what each token adds to a text."""
        self.pieces = pieces
        self._sorted = sorted((piece, i) for i, piece in enumerate(pieces) if piece)
        # Of a string that many requests send alike, searched once.
        self.ban = lru_cache(maxsize=1024)(self._ban)
        self.containing = lru_cache(maxsize=1024)(self._containing)

    def beginning_with(self, prefix: bytes) -> tuple[int, ...]:
        """Tokens whose text begins with `prefix`."""
        start = bisect.bisect_left(self._sorted, (prefix,))
        end = bisect.bisect_right(
            self._sorted, prefix, start, key=lambda item: item[0][: len(prefix)]
        )
        return tuple(i for _, i in self._sorted[start:end])

    def _containing(self, data: bytes) -> tuple[int, ...]:
        """Tokens with all of `data` in their text."""
        return tuple(i for piece, i in self._sorted if data in piece)

    def _ban(self, text: str) -> BannedString:
        data = text.encode()
        completing = [self.beginning_with(data[i:]) for i in range(1, len(data))]
        return BannedString(data, self.containing(data), ((), *completing))
