"""Where jobs stand among those that wait, as the engine thread has told when it was asked last.

Request threads, under the engine's lock.
"""

import itertools
import math
import threading
import time
from collections.abc import Callable

from switchyard.engine.messages import ListPending, PendingList


class QueuePlaces:
    def __init__(self, changed: threading.Condition, send: Callable[[ListPending], None]) -> None:
        """`changed`: the engine's lock, notified when an answer has come."""
        self._changed = changed
        self._send = send
        self._serials = itertools.count(1)  # of questions
        self._newest = PendingList(0, ())
        self._asked = -math.inf  # when `renew` has asked last
        self._is_over = False

    def note(self, answer: PendingList) -> None:
        self._newest = answer

    def end(self) -> None:
        """No answer will come any more."""
        self._is_over = True

    def of_all(self) -> dict[str, int]:
        """1 is next."""
        return {identifier: i for i, identifier in enumerate(self._newest.identifiers, 1)}

    def of(self, identifier: str) -> int | None:
        identifiers = self._newest.identifiers
        return identifiers.index(identifier) + 1 if identifier in identifiers else None

    def ask(self, timeout: float) -> bool:
        """Whether there is an answer within `timeout` seconds. Lets go of the lock meanwhile."""
        serial = next(self._serials)
        self._send(ListPending(serial))
        return self._changed.wait_for(
            lambda: self._newest.serial >= serial or self._is_over, timeout
        )

    def renew(self, max_age: float, timeout: float) -> None:
        """Ask, unless that was done in the last `max_age` seconds."""
        now = time.monotonic()
        if now - self._asked >= max_age:
            self._asked = now
            self.ask(timeout)
