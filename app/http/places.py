"""Limits the number of open WebSockets, in total and for each client. Thread-safe."""

import threading
from collections import Counter


class Places:
    def __init__(self, number: int) -> None:
        self.number = number
        self.most = -(-number // 2)  # maximum number of places for one client
        self._lock = threading.Lock()  # guards the fields below
        self._taken: Counter[str] = Counter()  # number of places taken, by client

    @property
    def num_taken(self) -> int:
        with self._lock:
            return self._taken.total()

    def take(self, client: str) -> str | None:
        """Takes a place and returns None. The caller must call `give_back` later. If no place is
        free, returns the reason.
        """
        with self._lock:
            if self._taken.total() >= self.number:
                return f"{self.number} WebSockets are open, which is the maximum for this server"
            if self._taken.get(client, 0) >= self.most:
                return (
                    f"{self.most} WebSockets are open from this address (for IPv6, its /64), or"
                    " with this API key, which is the maximum for one client"
                )
            self._taken[client] += 1
            return None

    def give_back(self, client: str) -> None:
        with self._lock:
            self._taken[client] -= 1
            if not self._taken[client]:
                del self._taken[client]
