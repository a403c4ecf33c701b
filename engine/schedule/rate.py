"""The rate at which jobs end. Pure: the caller brings the clock."""

import math

MEMORY = 30.0  # seconds in which a job's weight falls to 1/e


class CompletionRate:
    """Jobs ended a second, as an exponentially weighted mean over busy time. Times are seconds of
    one monotonic clock.
    """

    def __init__(self) -> None:
        self._ended = 0.0  # jobs ended, weighted
        self._span = 0.0  # busy seconds, weighted alike
        self._now = 0.0

    def resume(self, now: float) -> None:
        """Jobs come after idle time, which does not count."""
        self._now = now

    def note(self, now: float) -> None:
        """A job has ended."""
        self._advance(now)
        self._ended += 1

    def seconds(self, num_jobs: int, now: float) -> float:
        """Expected seconds until `num_jobs` more jobs have ended. If no job ever has: the busy time
        so far.
        """
        self._advance(now)
        return self._span * (num_jobs / self._ended if self._ended else 1)

    def _advance(self, now: float) -> None:
        weight = math.exp((self._now - now) / MEMORY)
        self._ended *= weight
        self._span = self._span * weight + MEMORY * (1 - weight)
        self._now = now
