"""Limits how many wrong API keys each IPv4 address and each IPv6 /64 may send. Thread-safe."""

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from switchyard.app.exceptions import LimitReached

audit = logging.getLogger("switchyard.audit")

MOST = 20  # wrong keys that an address may send in a PERIOD; then more are refused for a PERIOD
PERIOD = 60.0  # seconds
MAX_ADDRESSES = 10_000  # if there are more, the oldest are forgotten


@dataclass(slots=True)
class _Failed:
    since: float  # the beginning of the period
    count: int = 0
    until: float = -math.inf  # the end of the refusal
    untold: int = 0  # wrong keys since the last line of the audit log
    told_at: float = -math.inf


class Failures:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below
        self._by_address: OrderedDict[str, _Failed] = OrderedDict()

    def check(self, address: str) -> None:
        """Called for a wrong key. Raises LimitReached while wrong keys from the address are
        refused.
        """
        failed = self._by_address.get(address)
        left = 0.0 if failed is None else failed.until - self._clock()
        if left > 0:
            raise LimitReached(
                f"{MOST} requests from this address had a wrong API key: wait {left:.0f} seconds",
                left,
                "too_many_failures",
            )

    def note(self, address: str) -> None:
        """Counts a wrong key from an address, and writes an audit line now and then."""
        now = self._clock()
        with self._lock:
            failed = self._by_address.setdefault(address, _Failed(now))
            if len(self._by_address) > MAX_ADDRESSES:
                self._by_address.popitem(last=False)
            if now - failed.since >= PERIOD:
                failed.since, failed.count = now, 0
            failed.count += 1
            failed.untold += 1
            if is_refused := failed.count >= MOST:
                failed.until, failed.count = now + PERIOD, 0
            if not is_refused and now - failed.told_at < PERIOD:
                return
            count, failed.untold, failed.told_at = failed.untold, 0, now
        refused = f"; more are refused for {PERIOD:.0f} seconds" if is_refused else ""
        audit.warning("address:%s: wrong API keys: %d%s", address, count, refused)
