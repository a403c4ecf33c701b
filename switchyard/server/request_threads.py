"""Who may have a request thread for how long. Request threads."""

from switchyard import engine

RETRY = 1.0  # seconds; nobody knows when a slow client has sent all


class RequestThreads:
    """The last few take no bodies, so that health checks and refusals are answered whatever comes;
    half of them at the most wait for bodies.
    """

    def __init__(self, number: int, num_reserved: int) -> None:
        self.number = number
        self._max_reading = number - num_reserved
        self._max_waiting = number // 2
        self._busy: set[object] = set()  # connections; a set's own methods need no lock
        self._waiting: set[object] = set()

    @property
    def num_busy(self) -> int:
        return len(self._busy)

    def enter(self, connection: object) -> None:
        self._busy.add(connection)

    def leave(self, connection: object) -> None:
        self._busy.discard(connection)
        self._waiting.discard(connection)

    def check_body(self) -> None:
        """Before one is read. Raises Full."""
        if len(self._busy) > self._max_reading:
            raise engine.Full("as many requests are served as this server has threads for", RETRY)

    def wait(self, connection: object) -> None:
        """Before a thread waits for more of a body. Raises Full."""
        if len(self._waiting) >= self._max_waiting and connection not in self._waiting:
            number = self._max_waiting
            raise engine.Full(
                f"{number} bodies are being received, as many as may come slowly", RETRY
            )
        self._waiting.add(connection)

    def stop_waiting(self, connection: object) -> None:
        self._waiting.discard(connection)
