"""How fast jobs end. Pure: the caller brings the clock."""

import math

MEMORY = 30.0  # seconds in which what was seen loses all but 1/e of its weight


class CompletionRate:
    """An exponentially weighted mean of jobs ended a second, over the time in which there were any.

    Times are seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._ended = 0.0  # jobs, weighted
        self._span = 0.0  # seconds, weighted alike
        self._now = 0.0

    def resume(self, now: float) -> None:
        """Jobs come to where there were none: the time before says nothing."""
        self._now = now

    def note(self, now: float) -> None:
        """A job has ended."""
        self._advance(now)
        self._ended += 1

    def seconds(self, num_jobs: int, now: float) -> float:
        """How long it takes until so many more have ended; as long again as it was busy so far,
        if none ever has.
        """
        self._advance(now)
        return self._span * (num_jobs / self._ended if self._ended else 1)

    def _advance(self, now: float) -> None:
        weight = math.exp((self._now - now) / MEMORY)
        self._ended *= weight
        self._span = self._span * weight + MEMORY * (1 - weight)
        self._now = now
