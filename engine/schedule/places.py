"""What an engine thread is asked about its jobs, and has answered last.

Request threads, under the engine's lock.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from switchyard.engine.messages import (
    Command,
    JobList,
    JobState,
    ListJobs,
    ListPending,
    PendingList,
)

Answer = TypeVar("Answer", PendingList, JobList)


class Inquiry(Generic[Answer]):
    """Questions of one kind."""

    def __init__(
        self,
        question: Callable[[int], Command],
        nothing: Answer,
        changed: threading.Condition,
        send: Callable[[Command], None],
    ) -> None:
        """`question`: with a serial, that the answer has; `changed`: the engine's lock, notified
        when an answer has come.
        """
        self.newest: Answer = nothing
        self.is_over = False  # no answer will come any more
        self._question = question
        self._changed = changed
        self._send = send
        self._serials = itertools.count(1)

    def ask(self, timeout: float) -> bool:
        """Whether there is an answer within `timeout` seconds. Lets go of the lock meanwhile."""
        serial = next(self._serials)
        self._send(self._question(serial))
        return self._changed.wait_for(lambda: self.newest.serial >= serial or self.is_over, timeout)


class QueuePlaces:
    """Where jobs stand among those that wait, and which other servers have with the same engine."""

    def __init__(self, changed: threading.Condition, send: Callable[[Command], None]) -> None:
        self._pending = Inquiry(ListPending, PendingList(0, ()), changed, send)
        self._jobs = Inquiry(ListJobs, JobList(0, ()), changed, send)
        self._asked = -math.inf  # when `renew` has asked last

    def note(self, answer: PendingList | JobList) -> None:
        if isinstance(answer, PendingList):
            self._pending.newest = answer
        else:
            self._jobs.newest = answer

    def end(self) -> None:
        """No answer will come any more."""
        self._pending.is_over = self._jobs.is_over = True

    def ask(self, timeout: float) -> dict[str, int]:
        """All, 1 is next. Empty without an answer within `timeout` seconds."""
        if not self._pending.ask(timeout):
            return {}
        return {one: i for i, one in enumerate(self._pending.newest.identifiers, 1)}

    def of(self, identifier: str) -> int | None:
        identifiers = self._pending.newest.identifiers
        return identifiers.index(identifier) + 1 if identifier in identifiers else None

    def renew(self, max_age: float, timeout: float) -> None:
        """Ask, unless that was done in the last `max_age` seconds."""
        now = time.monotonic()
        if now - self._asked >= max_age:
            self._asked = now
            self._pending.ask(timeout)

    def ask_jobs(self, timeout: float) -> tuple[JobState, ...]:
        """Of all servers. None without an answer within `timeout` seconds."""
        return self._jobs.newest.jobs if self._jobs.ask(timeout) else ()
