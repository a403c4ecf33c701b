"""Limits how long a connection may hold a request thread. Called on request threads."""

from collections.abc import Callable
from typing import Any

from switchyard import engine
from switchyard.server.threads.entrance import PATIENCE

RETRY = 1.0  # seconds; a guess, because nothing predicts when a slow client finishes


class RequestThreads:
    """The last few threads don't read bodies, so that health checks and refusals always get a
    response. At most half of the threads wait for bodies.
    """

    def __init__(
        self,
        number: int,
        num_reserved: int,
        leave_entrance: Callable[[Any], None] = lambda connection: None,
    ) -> None:
        self.number = number
        self.leave_entrance = leave_entrance  # called before a thread waits for a body
        self._max_reading = number - num_reserved
        self._max_waiting = number // 2
        self._busy: set[object] = set()  # connections; the set's methods need no lock
        self._waiting: set[object] = set()

    @property
    def num_busy(self) -> int:
        return len(self._busy)

    def enter(self, connection: object) -> None:
        self._busy.add(connection)

    def leave(self, connection: object) -> None:
        self._busy.discard(connection)
        self._waiting.discard(connection)

    def check_body(self, is_turned_away: bool = False) -> None:
        """Called before a body is read. `is_turned_away`: whether the entrance turned the request
        away. Raises Full.
        """
        if is_turned_away:
            raise engine.Full(
                f"the queue is full: this request waited {PATIENCE:g} s, or too many requests"
                " were ahead of it",
                RETRY,
            )
        if len(self._busy) > self._max_reading:
            raise engine.Full("all request threads that read bodies are busy", RETRY)

    def wait(self, connection: object) -> None:
        """Called before a thread waits for more of a body. Raises Full."""
        if len(self._waiting) >= self._max_waiting and connection not in self._waiting:
            number = self._max_waiting
            raise engine.Full(
                f"{number} bodies are arriving slowly, and this server waits for no more than that",
                RETRY,
            )
        self._waiting.add(connection)

    def stop_waiting(self, connection: object) -> None:
        self._waiting.discard(connection)
