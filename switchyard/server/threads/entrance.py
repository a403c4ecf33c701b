"""The entrance: admission of POSTs to request threads. POSTs that are not admitted yet wait in
order, without a thread.

A request holds a place from its dispatch until its jobs are submitted, it has to wait, or it ends.
Preparing a prompt needs the GIL. If more prompts were prepared at once, none would be ready sooner,
and the threads that send responses would get the GIL less often. After a request has been refused,
its place stays empty for as long as the request took. Clients that retry immediately therefore
occupy the places for at most half of the time.
"""

import heapq
import threading
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from switchyard import engine

PLACES = 4
HOLD = 1.0  # seconds after which a request gives up its place, because it is probably waiting
PATIENCE = 10.0  # seconds that a request waits here at most

Guest = TypeVar("Guest")  # a connection whose request has arrived


class Entrance(Generic[Guest]):
    def __init__(
        self,
        begin: Callable[[Guest], None],
        turn_away: Callable[[Guest], None],
        max_waiting: int,
        has_left: Callable[[Guest], bool],
        forget: Callable[[Guest], None],
    ) -> None:
        """`begin` gives a request a thread. `turn_away` is called for a request that has waited too
        long or finds `max_waiting` others ahead of it. `forget` is called for a request whose
        client has left, as `has_left` reports. All three may be called on any thread, and must not
        block.
        """
        self._begin = begin
        self._turn_away = turn_away
        self._max_waiting = max_waiting
        self._has_left = has_left
        self._forget = forget
        self._lock = threading.Lock()  # guards the attributes below
        self._inside: dict[Guest, float] = {}  # since when, in order
        self._waiting: dict[Guest, float] = {}  # until when, in order
        self._rests: list[float] = []  # when places that stay empty can be used again; a heap
        self._has_alarm = False  # for the end of the next rest
        self._is_open = False

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    # Main thread

    def enter(self, guest: Guest) -> None:
        """Begins the request now, or when its turn comes."""
        now = time.monotonic()
        with self._lock:
            if len(self._waiting) >= self._max_waiting:
                self._next()  # forgets those that have left
            is_full = len(self._waiting) >= self._max_waiting
            if not is_full:
                self._waiting[guest] = now + PATIENCE
            ready = self._admit(now)
        if is_full:
            self._turn_away(guest)
        self._begin_all(ready)

    def look(self) -> None:
        """Called at least once a second, to take back places and to end waits."""
        now = time.monotonic()
        if not self._waiting:  # nearly always
            return
        with self._lock:
            for guest in [one for one, since in self._inside.items() if since < now - HOLD]:
                del self._inside[guest]
            late = [guest for guest, until in self._waiting.items() if until <= now]
            for guest in late:
                del self._waiting[guest]
            ready = self._admit(now)
        for guest in late:
            self._turn_away(guest)
        self._begin_all(ready)

    def open(self) -> None:
        """Lets each request begin immediately from now on."""
        with self._lock:
            self._is_open = True
            ready = self._admit(time.monotonic())
        self._begin_all(ready)

    # Any thread

    def leave(self, guest: Guest, is_refused: bool = False) -> None:
        """Idempotent. May also be called for requests that have never entered."""
        now = time.monotonic()
        with self._lock:
            since = self._inside.pop(guest, None)
            if since is None:
                return
            if is_refused:
                heapq.heappush(self._rests, now + min(now - since, HOLD))
            ready = self._admit(now)
        self._begin_all(ready)

    # Alarms' thread

    def _end_rest(self) -> None:
        with self._lock:
            self._has_alarm = False
            ready = self._admit(time.monotonic())
        self._begin_all(ready)

    # Inside

    def _begin_all(self, ready: Iterable[Guest]) -> None:
        for guest in ready:
            self._begin(guest)

    def _next(self) -> Guest | None:
        """Returns the first waiting request. Earlier requests whose clients have left are
        forgotten. Called under the lock.
        """
        while self._waiting:
            guest = next(iter(self._waiting))
            if not self._has_left(guest):
                return guest
            del self._waiting[guest]
            self._forget(guest)
        return None

    def _admit(self, now: float) -> list[Guest]:
        """Returns the requests that begin now. Called under the lock."""
        while self._rests and self._rests[0] <= now:
            heapq.heappop(self._rests)
        num_free = PLACES - len(self._inside) - len(self._rests)
        if self._is_open:
            num_free = len(self._waiting)
        ready: list[Guest] = []
        while len(ready) < num_free and (guest := self._next()) is not None:
            del self._waiting[guest]
            self._inside[guest] = now
            ready.append(guest)
        if self._waiting and self._rests and not self._has_alarm:
            self._has_alarm = True
            engine.ALARMS.set(self._rests[0] - now, self._end_rest)
        return ready
