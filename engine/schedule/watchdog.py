"""Notices what does not return: a thread of its own, beside an engine thread."""

import threading
import time
from collections.abc import Callable

CHECKS = 10  # in the shorter of the two times


class Watchdog:
    """Reads since when the engine thread is busy, and nothing else of it. Times in seconds."""

    def __init__(
        self,
        name: str,
        busy_since: Callable[[], float | None],
        hang_timeout: float,
        tell_hang: Callable[[float], None],
        hang_exit: float,
        tell_lost: Callable[[float], None],
    ) -> None:
        """`busy_since`, by time.monotonic(), is None while it waits or may take as long as it
        likes. Each hang is told once, and the end, `tell_lost`, once.
        """
        self._busy_since = busy_since
        self._hang_timeout = hang_timeout
        self._tell_hang = tell_hang
        self._hang_exit = hang_exit
        self._tell_lost = tell_lost
        self._told: float | None = None  # the hang that was told, by its beginning
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watchdog-{name}", daemon=True)

    # Any thread

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once."""
        self._stop.set()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    # Watchdog's thread

    def check(self, now: float) -> bool:
        """Whether to go on."""
        since = self._busy_since()
        if since is None or now - since < self._hang_timeout:
            return True
        if self._told != since:
            self._told = since
            self._tell_hang(now - since)
        if now - since < self._hang_exit:
            return True
        self._tell_lost(now - since)
        return False

    def _run(self) -> None:
        interval = min(self._hang_timeout / CHECKS, 1.0)
        while not self._stop.wait(interval) and self.check(time.monotonic()):
            pass
