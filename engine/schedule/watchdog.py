"""Detects steps that do not return, on a separate thread."""

import threading
from collections.abc import Callable

CHECKS = 10  # checks per `hang_timeout`


def interval_of(hang_timeout: float) -> float:
    """The seconds between checks. A hang is counted in checks, not measured with a clock, because
    CLOCK_MONOTONIC continues while this process, its container or the machine is stopped or frozen.
    Such a pause counts as one check, regardless of its length, and isn't a hang.
    """
    return min(hang_timeout / CHECKS, 1.0)


def stuck(seconds: float) -> str:
    return f"a step of the generator does not return: {seconds:.0f} s so far"


class Watchdog:
    """Detects when the engine thread hangs. Reads only the time at which the current step began.
    Times are in seconds.
    """

    def __init__(
        self,
        name: str,
        busy_since: Callable[[], float | None],
        hang_timeout: float,
        tell_hang: Callable[[float], None],
        hang_exit: float,
        tell_lost: Callable[[float], None],
    ) -> None:
        """`busy_since`: when the current step began, which identifies the step, or None while the
        thread waits or is allowed to take any time. Each hang is reported once, and `tell_lost` is
        called once.
        """
        self._busy_since = busy_since
        self._hang_timeout = hang_timeout
        self._tell_hang = tell_hang
        self._hang_exit = hang_exit
        self._tell_lost = tell_lost
        self._interval = interval_of(hang_timeout)
        self._since: float | None = None  # at the last check
        self._num_looks = 0  # checks that found the same step
        self._is_told = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watchdog-{name}", daemon=True)

    # Any thread

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop checking. Returns at once."""
        self._stop.set()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    # Watchdog's thread

    def check(self) -> bool:
        """Check the thread once. Returns whether checks should continue."""
        since = self._busy_since()
        if since is None or since != self._since:
            self._since, self._num_looks, self._is_told = since, 0, False
            return True
        self._num_looks += 1
        seconds = self._num_looks * self._interval
        if seconds >= self._hang_timeout and not self._is_told:
            self._is_told = True
            self._tell_hang(seconds)
        if seconds < self._hang_exit:
            return True
        self._tell_lost(seconds)
        return False

    def _run(self) -> None:
        while not self._stop.wait(self._interval) and self.check():
            pass
