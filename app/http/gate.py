"""The gate: admission of large inputs to parsing, validation, tokenizing and compiling. Runs on
request threads.

This work takes the GIL from the engine thread and uses memory, both in proportion to the input. The
gate admits two large inputs at a time, of up to 1 MiB in total; a larger input is admitted alone.
Other inputs wait in order of arrival, each on its own event. An input that leaves admits the next
one. While jobs run, the next input waits for as long as the last one was inside, so large inputs
take at most half of the time. A waiting thread checks four times a second whether its client is
still there. Small inputs pass without a lock, because each request thread handles at most one at a
time, for a millisecond. An input that turns out to be more work than its size suggests enters the
gate again, through `parts.weight`.

While an input is inside, threads give up the GIL ten times as often. The engine thread takes the
GIL about a hundred times per step, and would otherwise wait 5 ms each time. When no input is
inside, shorter turns cost more than they gain, because hundreds of reader threads would keep
switching.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from switchyard import engine

LARGE = 16 * 1024  # bytes; a smaller input passes immediately
MAX_INSIDE = 2
MAX_BYTES = 1 << 20  # bytes of all inputs inside
SWITCH_INTERVAL = 0.0005  # seconds that a thread may keep the GIL while others want it
LOOK = 0.25  # seconds between a waiting thread's checks of its client
QUIET = 10.0  # seconds after the last input has left until memory is returned to the system
RETRY = 5.0  # seconds; most waiting inputs have passed by then


class _ShortTurns:
    """Shortens the interpreter's switch interval while any gate of this process has an input."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._num_gates = 0
        self._usual = 0.0

    def begin(self) -> None:
        with self._lock:
            if not self._num_gates:
                self._usual = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_INTERVAL, self._usual))
            self._num_gates += 1

    def end(self) -> None:
        with self._lock:
            self._num_gates -= 1
            if not self._num_gates:
                sys.setswitchinterval(self._usual)


_SHORT_TURNS = _ShortTurns()


class Place:
    """The place of one input at the gate, from the input's arrival until it leaves."""

    __slots__ = ("_gate", "admitted", "begun", "since", "size")

    def __init__(self, gate: "Gate | None", size: int) -> None:
        """`size`: bytes. `gate`: None for a small input."""
        self.since = time.monotonic()
        self.begun = 0.0  # the time of admission
        self.size = size
        self.admitted = threading.Event()
        self._gate = gate

    def leave(self) -> None:
        """Leaves the gate. Idempotent."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.leave(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()


class Gate:
    """The gate of one application."""

    def __init__(
        self,
        max_waiting: int,
        max_busy: int,
        num_busy: Callable[[], int],
        prepared: Callable[[], None] = lambda: None,
    ) -> None:
        """At most `max_waiting` inputs wait. Waiting inputs and running jobs (`num_busy`) are at
        most `max_busy` in total, because each holds a request thread, and some threads must stay
        free. `prepared`: see `Threads.on_prepared`; called for each large input.
        """
        self._max_waiting = max_waiting
        self._max_busy = max_busy
        self._num_busy = num_busy
        self._prepared = prepared
        self._lock = threading.Lock()  # guards the fields below
        self._inside: list[Place] = []
        self._waiting: deque[Place] = deque()
        self._has_alarm = False
        self._has_short_turns = False
        self._rest_until = 0.0  # the end of the rest, by the monotonic clock
        self._rests = False  # whether an alarm is set for the end of the rest

    @property
    def num_inside(self) -> int:
        return len(self._inside)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def enter(self, size: int, check: Callable[[], None]) -> Place:
        """A place inside for an input of `size` bytes. The caller must leave the place. While
        waiting, calls `check`; an exception from `check` ends the wait. Raises Full if too many
        inputs are waiting.
        """
        if size < LARGE:
            return Place(None, size)
        self._prepared()
        place = Place(self, size)
        with self._lock:
            self._waiting.append(place)
            self._admit()
            if not place.admitted.is_set() and self._is_full():
                self._waiting.pop()
                raise engine.Full(
                    f"the queue is full: {len(self._waiting)} large requests are already waiting",
                    RETRY,
                )
        try:
            while not place.admitted.wait(LOOK):
                check()
        except BaseException:
            place.leave()
            raise
        return place

    def leave(self, place: Place) -> None:
        """Frees a place, whether its input is waiting or inside. Only `Place.leave` calls this."""
        with self._lock:
            if place.admitted.is_set():
                self._inside.remove(place)
                self._rest_from(place)
            else:
                self._waiting.remove(place)
            self._admit()
            is_first_quiet = not (self._inside or self._has_alarm)
            self._has_alarm = self._has_alarm or is_first_quiet
        if is_first_quiet:
            engine.ALARMS.set(QUIET, self._give_memory_back)

    # Alarms' thread

    def _end_rest(self) -> None:
        with self._lock:
            self._rests = False
            self._admit()

    def _give_memory_back(self) -> None:
        with self._lock:
            self._has_alarm = False
            is_quiet = not self._inside
        if is_quiet:
            engine.give_memory_back()

    # Called with the lock held

    def _is_full(self) -> bool:
        """Whether the newest waiting input is one too many."""
        num_waiting = len(self._waiting)
        return num_waiting > self._max_waiting or num_waiting + self._num_busy() > self._max_busy

    def _rest_from(self, place: Place) -> None:
        if self._waiting and self._num_busy():
            now = time.monotonic()
            self._rest_until = max(self._rest_until, now + now - place.begun)

    def _admit(self) -> None:
        while self._waiting and self._has_room(self._waiting[0]):
            if (rest := self._rest_until - time.monotonic()) > 0:
                self._rest(rest)
                break
            place = self._waiting.popleft()
            place.begun = time.monotonic()
            self._inside.append(place)
            place.admitted.set()
        if self._has_short_turns != bool(self._inside):
            self._has_short_turns = bool(self._inside)
            (_SHORT_TURNS.begin if self._inside else _SHORT_TURNS.end)()

    def _rest(self, seconds: float) -> None:
        if not self._rests:
            self._rests = True
            engine.ALARMS.set(seconds, self._end_rest)

    def _has_room(self, place: Place) -> bool:
        if not self._inside:
            return True
        num_bytes = place.size + sum(other.size for other in self._inside)
        return len(self._inside) < MAX_INSIDE and num_bytes <= MAX_BYTES
