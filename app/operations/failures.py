"""Wrong keys by address, of which there may be few a minute: each costs a hash. Any thread."""

import logging
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from switchyard.app.exceptions import LimitReached

audit = logging.getLogger("switchyard.audit")

MOST = 20  # of one address in `PERIOD`, for which it is refused then
PERIOD = 60.0  # seconds
MAX_ADDRESSES = 10_000  # the oldest are forgotten


@dataclass(slots=True)
class _Failed:
    since: float  # begin of the period
    count: int = 0
    until: float = -math.inf  # the address is refused till then
    untold: int = 0
    told_at: float = -math.inf


class Failures:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards what follows
        self._by_address: OrderedDict[str, _Failed] = OrderedDict()

    def check(self, address: str) -> None:
        """Before any key of this address is looked at. Raises LimitReached."""
        failed = self._by_address.get(address)
        left = 0.0 if failed is None else failed.until - self._clock()
        if left > 0:
            raise LimitReached(
                f"{MOST} requests from this address had a wrong API key: wait {left:.0f} seconds",
                left,
                "too_many_failures",
            )

    def note(self, address: str) -> None:
        """Of an address whose key was wrong."""
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
                failed.since = failed.until = now + PERIOD
                failed.count = 0
            if not is_refused and now - failed.told_at < PERIOD:
                return
            count, failed.untold, failed.told_at = failed.untold, 0, now
        refused = f", which is refused for {PERIOD:.0f} seconds" if is_refused else ""
        audit.warning("address:%s: wrong API keys: %d%s", address, count, refused)
