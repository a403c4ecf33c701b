"""What large inputs pass before they are parsed, checked, tokenized and compiled. Request threads.

All of that takes the GIL from the engine thread, and memory, with the length of the input. So of
what is large two are inside at most, with 1 MiB together; a larger one is inside alone. The others
wait in the order in which they came, each on an event of its own, and what leaves admits the next:
at once, or while jobs are served after as long a rest as it was inside, so that what is large has
half of the time at most.
Four times a second what waits looks whether there is still somebody to wait for. Small inputs pass
by, without any lock: there are no more of them than request threads, for a millisecond each.

While anything is inside, threads give the GIL up ten times as often: the engine thread takes it
some hundred times a step, and would wait 5 ms for it each time. At other times that would cost more
than it brings, since hundreds of readers take turns then.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from switchyard import engine

LARGE = 16 * 1024  # bytes of an input that has to pass
MAX_INSIDE = 2
MAX_BYTES = 1 << 20  # of those inside together
SWITCH_INTERVAL = 0.0005  # seconds that a thread may keep the GIL while others want it
LOOK = 0.25  # seconds from one look to the next
QUIET = 10.0  # seconds after the last has left until its memory goes back to the system
RETRY = 5.0  # seconds, in which most that wait have been inside


class _ShortTurns:
    """Of the interpreter's threads, while any of this process's gates has something inside."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
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
    """Of one input, from its arrival until it leaves."""

    __slots__ = ("_gate", "admitted", "begun", "since", "size")

    def __init__(self, gate: "Gate | None", size: int) -> None:
        """`gate`: None for an input that is small."""
        self.since = time.monotonic()
        self.begun = 0.0  # when it was admitted
        self.size = size
        self.admitted = threading.Event()
        self._gate = gate

    def leave(self) -> None:
        """Harmless when called again."""
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
    """Of one application."""

    def __init__(self, max_waiting: int, max_busy: int, num_busy: Callable[[], int]) -> None:
        """At most `max_waiting` wait, and no more than `max_busy` together with the jobs that
        `num_busy` tells: each has a request thread, and some must be left.
        """
        self._max_waiting = max_waiting
        self._max_busy = max_busy
        self._num_busy = num_busy
        self._lock = threading.Lock()  # guards what follows
        self._inside: list[Place] = []
        self._waiting: deque[Place] = deque()
        self._has_alarm = False
        self._has_short_turns = False
        self._rest_until = 0.0  # by the monotonic clock
        self._rests = False  # an alarm is set for its end

    @property
    def num_inside(self) -> int:
        return len(self._inside)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def enter(self, size: int, check: Callable[[], None]) -> Place:
        """A place inside for so many bytes; leave it in the end. Waits for it until `check` raises.
        Raises Full where too many wait.
        """
        if size < LARGE:
            return Place(None, size)
        place = Place(self, size)
        with self._lock:
            self._waiting.append(place)
            self._admit()
            if not place.admitted.is_set() and self._is_full():
                self._waiting.pop()
                raise engine.Full(f"{len(self._waiting)} large requests wait already", RETRY)
        try:
            while not place.admitted.wait(LOOK):
                check()
        except BaseException:
            place.leave()
            raise
        return place

    def leave(self, place: Place) -> None:
        """Called by the place."""
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

    # Under the lock

    def _is_full(self) -> bool:
        """Whether the last that has come to wait is one too many."""
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
