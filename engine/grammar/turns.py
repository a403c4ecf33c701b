"""Lets slow work that holds the GIL run only in turns, so that it never takes up most of the time.
Used on the engine thread.
"""

import time
from collections.abc import Callable

REST = 4.0  # pause after a turn, as a multiple of the turn's length


class SlowTurns:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = 0.0

    @property
    def is_free(self) -> bool:
        return self._clock() >= self._next

    def take(self, seconds: float) -> None:
        """Begins a turn that is expected to take `seconds`."""
        self._next = self._clock() + seconds

    def end(self, seconds: float) -> None:
        """Ends a turn that took `seconds`."""
        self._next = self._clock() + REST * seconds
