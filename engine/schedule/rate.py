"""The rate at which jobs end. Reads no clock, because the caller provides the times."""

import math
from typing import NamedTuple

MEMORY = 30.0  # seconds in which a job's weight falls to 1/e


class _Seen(NamedTuple):
    ended: float = 0.0  # jobs ended, weighted
    span: float = 0.0  # busy seconds, weighted alike
    now: float = 0.0

    def at(self, now: float) -> "_Seen":
        weight = math.exp((self.now - now) / MEMORY)
        return _Seen(self.ended * weight, self.span * weight + MEMORY * (1 - weight), now)


class CompletionRate:
    """The number of jobs that end per second, as an exponentially weighted mean over busy time.
    Times are in seconds on one monotonic clock. Any thread may call `seconds` while another calls
    `note`.
    """

    def __init__(self) -> None:
        self._seen = _Seen()

    def resume(self, now: float) -> None:
        """Called when jobs arrive after an idle period, which does not count."""
        self._seen = self._seen._replace(now=now)

    def note(self, now: float) -> None:
        """Note that a job has ended."""
        seen = self._seen.at(now)
        self._seen = seen._replace(ended=seen.ended + 1)

    def seconds(self, num_jobs: int, now: float) -> float:
        """The expected seconds until `num_jobs` more jobs have ended, or the busy time so far if no
        job has ended yet.
        """
        seen = self._seen.at(now)
        return seen.span * (num_jobs / seen.ended if seen.ended else 1)
