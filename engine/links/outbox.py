"""Delivers the events of several threads in one common order."""

import threading
from collections import deque
from collections.abc import Sequence

from switchyard.engine.links.base import Deliver
from switchyard.engine.messages import Event
from switchyard.engine.schedule.alarms import ALARMS


class Outbox:
    """The thread that is currently delivering also delivers the events of other threads, so those
    threads don't wait.
    """

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._batches: deque[Sequence[Event]] = deque()
        self._turn = threading.Lock()  # held during a delivery

    def put(self, events: Sequence[Event]) -> None:
        """Queue events. Called under the lock that defines their order."""
        if events:
            self._batches.append(events)

    def put_later(self, events: Sequence[Event]) -> None:
        """Queue events, and have another thread deliver them soon, without the caller's locks."""
        if events:
            self._batches.append(events)
            ALARMS.set(0.0, self.deliver)

    def deliver(self) -> None:
        """Deliver all queued events. If another thread is already delivering, that thread delivers
        these events too.
        """
        while self._batches and self._turn.acquire(blocking=False):
            try:
                while self._batches:
                    self._deliver(self._batches.popleft())
            finally:
                self._turn.release()
