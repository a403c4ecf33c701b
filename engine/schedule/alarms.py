"""Timers that share one thread, because a separate thread for each would cost as much as the rest
of a small request.
"""

import heapq
import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

PURGE = 1.0  # maximum seconds until cancelled alarms are dropped, and an idle thread ends


class Alarm:
    """Calls a function once, unless cancelled."""

    __slots__ = ("_call", "_lock")

    def __init__(self, call: Callable[[], None]) -> None:
        self._lock = threading.Lock()  # also held during the call
        self._call: Callable[[], None] | None = call

    @property
    def is_over(self) -> bool:
        return self._call is None

    def cancel(self) -> None:
        """After this returns, the function has been called or will never be called."""
        with self._lock:
            self._call = None

    def ring(self) -> None:
        with self._lock:
            call, self._call = self._call, None
            if call is None:
                return
            try:
                call()
            except Exception:  # the thread must continue for the other alarms
                logger.exception("an alarm failed")


class Alarms:
    """A set of alarms. Its thread runs while there are alarms."""

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards the rest; notified of an earlier alarm
        self._alarms: list[tuple[float, int, Alarm]] = []  # a heap, ordered by time
        self._number = 0  # number of the newest alarm
        self._next_turn = 0.0  # latest time at which the thread wakes
        self._is_running = False  # whether the thread runs, or is starting
        self._thread: threading.Thread | None = None  # None unless it runs

    def set(self, seconds: float, call: Callable[[], None]) -> Alarm:
        """May be called on any thread, even during garbage collection. `call` must be short,
        because it delays other alarms.
        """
        alarm, due = Alarm(call), time.monotonic() + seconds
        with self._changed:
            self._number += 1
            heapq.heappush(self._alarms, (due, self._number, alarm))
            is_first, self._is_running = not self._is_running, True
            if due < self._next_turn:
                self._changed.notify()
        if is_first:
            self._start()
        return alarm

    def rest(self) -> None:
        """If no alarm is left, wait until the thread has ended. The thread ends soon even without
        this call. An alarm must not call this method.
        """
        with self._changed:
            thread = self._thread
            is_at_rest = all(alarm.is_over for _, _, alarm in self._alarms)
            self._changed.notify()
        if thread is not None and is_at_rest:
            thread.join(PURGE)

    def _start(self) -> None:
        """Runs without the lock, because starting a thread may collect garbage, which may set an
        alarm.
        """
        try:
            threading.Thread(target=self._run, name="alarms", daemon=True).start()
        except BaseException:  # no thread is available: the next alarm tries again
            with self._changed:
                self._is_running = False
            raise

    def _run(self) -> None:
        self._thread = threading.current_thread()
        while True:
            for alarm in self._wait():
                alarm.ring()
            with self._changed:
                kept: list[tuple[float, int, Alarm]] = []
                number = -1
                while number != self._number:  # garbage collection has set another alarm
                    number = self._number
                    kept = [entry for entry in self._alarms if not entry[2].is_over]
                self._alarms = kept
                heapq.heapify(self._alarms)
                if not self._alarms:
                    self._thread, self._is_running = None, False
                    return

    def _wait(self) -> list[Alarm]:
        """Wait for the next alarm, or until cancelled alarms have to be dropped."""
        due: list[Alarm] = []
        with self._changed:
            now = time.monotonic()
            self._next_turn = min(self._alarms[0][0], now + PURGE)
            self._changed.wait(max(self._next_turn - now, 0))
            while self._alarms and self._alarms[0][0] <= time.monotonic():
                due.append(heapq.heappop(self._alarms)[2])
        return due


ALARMS = Alarms()  # of this process
