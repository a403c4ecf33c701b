"""Events of several threads, delivered in one order."""

import threading
from collections import deque
from collections.abc import Sequence

from switchyard.engine.links.base import Deliver
from switchyard.engine.messages import Event
from switchyard.engine.schedule.alarms import ALARMS


class Outbox:
    """Whichever thread has the turn delivers what others have put, too: so none waits for it."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._batches: deque[Sequence[Event]] = deque()
        self._turn = threading.Lock()  # held while delivering

    def put(self, events: Sequence[Event]) -> None:
        """To be delivered in this order. Under the lock that makes it one."""
        if events:
            self._batches.append(events)

    def put_later(self, events: Sequence[Event]) -> None:
        """Likewise, and delivered soon, by a thread that holds no lock of the caller's."""
        if events:
            self._batches.append(events)
            ALARMS.set(0.0, self.deliver)

    def deliver(self) -> None:
        """All that was put, unless another thread is at it, which looks once more at its end."""
        while self._batches and self._turn.acquire(blocking=False):
            try:
                while self._batches:
                    self._deliver(self._batches.popleft())
            finally:
                self._turn.release()
