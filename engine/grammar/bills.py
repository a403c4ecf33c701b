"""Measures the cost of computing masks, by job and by client. Can be used on any thread. Doesn't
use torch.
"""

import math
import threading
import time
from collections.abc import Callable

from switchyard.engine.errors import ConstraintTooSlow

MAX_SECONDS = 0.020  # seconds of core time for a token, on average
GRACE = 16  # tokens of a job before its average counts
MAX_MASK = 0.5  # seconds of core time per mask; the next token may hold the GIL for half as long
CREDIT = 1.0  # seconds by which a client's other jobs may have exceeded the average
HALF_LIFE = 60.0  # seconds until half of a client's debt is forgotten
MAX_CLIENTS = 1000  # the most recent ones, which are remembered


class Bill:
    """The cost of one job's masks. Created by `Bills`."""

    def __init__(self, bills: "Bills", client: str) -> None:
        self.client = client
        self.seconds = 0.0  # core time
        self.num_masks = 0
        self.latest = 0.0  # seconds for the latest mask
        self._bills = bills

    @property
    def debt(self) -> float:
        """The seconds by which the client's jobs have exceeded the allowed cost."""
        return self._bills.debt(self.client)

    @property
    def excess(self) -> float:
        """The seconds by which the job exceeds MAX_SECONDS per mask."""
        return max(self.seconds - MAX_SECONDS * self.num_masks, 0.0)

    def charge_mask(self, seconds: float) -> None:
        before = self.excess
        self.num_masks += 1
        self.latest = seconds
        self._charge(seconds, before)

    def charge_token(self, seconds: float) -> None:
        """Add the work of accepting the token that the most recent mask allowed."""
        self._charge(seconds, self.excess)

    def _charge(self, seconds: float, before: float) -> None:
        """`before`: the job's excess before this work."""
        self.seconds += seconds
        self._bills.add(self.client, seconds, self.excess - before)

    def check(self) -> None:
        """Raises ConstraintTooSlow for a mask that takes longer than MAX_MASK, and for a job that
        exceeds the allowed average. The average counts after GRACE masks, or at once if the
        client's other jobs have used up its credit.
        """
        if self.latest > MAX_MASK:
            raise _too_slow(
                f"a token took {self.latest:.1f} s of CPU time, but only {MAX_MASK:g} s are allowed"
            )
        if self.excess and (self.num_masks >= GRACE or self.debt - self.excess > CREDIT):
            mean = 1000 * self.seconds / self.num_masks
            raise _too_slow(
                f"its tokens take {mean:.0f} ms of CPU time each, but only"
                f" {1000 * MAX_SECONDS:.0f} ms are allowed on average"
            )


class Bills:
    """The debts of clients. A debt is the excess of all jobs of a client, including jobs that have
    ended.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.seconds = 0.0  # core time for all masks so far
        self._lock = threading.Lock()  # guards the attributes
        self._debts: dict[str, tuple[float, float]] = {}  # seconds, and when noted; latest last

    def bill(self, client: str) -> Bill:
        return Bill(self, client)

    def debt(self, client: str) -> float:
        with self._lock:
            return self._debt(client, self._clock())

    def add(self, client: str, seconds: float, excess: float) -> None:
        """`excess`: the change in the excess, which is below 0 for a job whose average has
        fallen.
        """
        with self._lock:
            self.seconds += seconds
            if not excess:
                return
            now = self._clock()
            debt = max(self._debt(client, now) + excess, 0.0)
            self._debts.pop(client, None)
            if debt:
                self._debts[client] = debt, now
            if len(self._debts) > MAX_CLIENTS:
                del self._debts[next(iter(self._debts))]

    def _debt(self, client: str, now: float) -> float:
        debt, then = self._debts.get(client, (0.0, now))
        return debt * math.exp2((then - now) / HALF_LIFE)


def _too_slow(why: str) -> ConstraintTooSlow:
    return ConstraintTooSlow(f"the constraint is too slow: {why}", "constraint")
