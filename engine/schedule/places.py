"""Queries to an engine thread about its jobs, and the most recent replies. Called on request
threads, under the engine's lock.
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
        """`question`: creates the command from a serial, which the reply repeats. `changed`: the
        engine's lock, which is notified of each reply.
        """
        self.newest: Answer = nothing
        self.is_over = False  # no more answers
        self._question = question
        self._changed = changed
        self._send = send
        self._serials = itertools.count(1)

    def ask(self, timeout: float) -> bool:
        """Returns whether a reply arrives within `timeout` seconds. Releases the lock while
        waiting.
        """
        serial = next(self._serials)
        self._send(self._question(serial))
        return self._changed.wait_for(lambda: self.newest.serial >= serial or self.is_over, timeout)


class QueuePlaces:
    """The positions of jobs in the queue, and the jobs of other servers on the same engine."""

    def __init__(self, changed: threading.Condition, send: Callable[[Command], None]) -> None:
        self._pending = Inquiry(ListPending, PendingList(0, ()), changed, send)
        self._jobs = Inquiry(ListJobs, JobList(0, ()), changed, send)
        self._asked = -math.inf  # time of `renew`'s last question

    def note(self, answer: PendingList | JobList) -> None:
        if isinstance(answer, PendingList):
            self._pending.newest = answer
        else:
            self._jobs.newest = answer

    def end(self) -> None:
        """Note that no more replies will arrive."""
        self._pending.is_over = self._jobs.is_over = True

    def ask(self, timeout: float) -> dict[str, int]:
        """Returns positions by identifier, where 1 is next. The result is empty if there is no
        reply within `timeout` seconds.
        """
        if not self._pending.ask(timeout):
            return {}
        return {one: i for i, one in enumerate(self._pending.newest.identifiers, 1)}

    def of(self, identifier: str) -> int | None:
        identifiers = self._pending.newest.identifiers
        return identifiers.index(identifier) + 1 if identifier in identifiers else None

    def renew(self, max_age: float, timeout: float) -> None:
        """Ask again, unless `renew` has asked in the last `max_age` seconds."""
        now = time.monotonic()
        if now - self._asked >= max_age:
            self._asked = now
            self._pending.ask(timeout)

    def ask_jobs(self, timeout: float) -> tuple[JobState, ...]:
        """The jobs of all servers. The result is empty if there is no reply within `timeout`
        seconds.
        """
        return self._jobs.newest.jobs if self._jobs.ask(timeout) else ()
