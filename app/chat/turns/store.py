"""Stored responses, which clients can read again or continue by identifier. Thread-safe.

Kept transcripts (`delivery.transcripts`) hold frames of running answers, for readers that come and
go. Stored responses are complete, and share memory with the responses that continue them, so they
have their own limits.
"""

import threading
import time
from collections.abc import Callable

from switchyard.app.chat.turns.turn import Turn


class StoredTurns:
    """The turns that one server keeps, keyed by the identifiers of their responses."""

    def __init__(
        self, max_bytes: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Keeps turns for `seconds`, and at most `max_bytes` of turns. If either limit is 0, keeps
        nothing.
        """
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below
        self._turns: dict[str, Turn] = {}  # by identifier, oldest first
        # By client, then by identifier, oldest first.
        self._by_client: dict[str, dict[str, Turn]] = {}
        self._bytes: dict[str, int] = {}  # by client: the bytes of its stored turns
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def is_on(self) -> bool:
        return bool(self._max_bytes and self._seconds)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def put(self, turn: Turn) -> None:
        """Stores a turn. While the turns exceed the limit, the client that stores the most bytes
        loses its oldest turns.
        """
        with self._lock:
            turn.stored = self._clock()
            self._turns[turn.identifier] = turn
            self._by_client.setdefault(turn.client, {})[turn.identifier] = turn
            self._hold(turn)
            self._forget_old()
            while self._num_bytes > self._max_bytes:
                client = max(self._bytes, key=self._bytes.__getitem__)
                self._forget(next(iter(self._by_client[client].values())))

    def find(self, identifier: str, owner: str) -> Turn | None:
        with self._lock:
            self._forget_old()
            turn = self._turns.get(identifier)
        return turn if turn is not None and turn.owner == owner else None

    def remove(self, identifier: str, owner: str) -> bool:
        """Deletes one of this owner's turns. Returns False if there is no such turn. The text is
        kept as long as another turn continues the deleted one.
        """
        with self._lock:
            self._forget_old()
            turn = self._turns.get(identifier)
            if turn is None or turn.owner != owner:
                return False
            self._forget(turn)
            return True

    def forget_old(self) -> None:
        """Deletes the turns that have expired."""
        if self._turns:
            with self._lock:
                self._forget_old()

    # Called with the lock held

    def _forget_old(self) -> None:
        due = self._clock() - self._seconds
        while self._turns and (oldest := next(iter(self._turns.values()))).stored <= due:
            self._forget(oldest)

    def _forget(self, turn: Turn) -> None:
        del self._turns[turn.identifier]
        of_client = self._by_client[turn.client]
        del of_client[turn.identifier]
        if not of_client:
            del self._by_client[turn.client]
        self._release(turn)

    def _hold(self, turn: Turn) -> None:
        held: Turn | None = turn
        while held is not None:
            held.num_holders += 1
            if held.num_holders > 1:  # a turn that was already held holds the turns before it
                return
            self._count(held, held.num_bytes)
            held = held.previous

    def _release(self, turn: Turn) -> None:
        held: Turn | None = turn
        while held is not None:
            held.num_holders -= 1
            if held.num_holders:
                return
            self._count(held, -held.num_bytes)
            held = held.previous

    def _count(self, turn: Turn, num_bytes: int) -> None:
        self._num_bytes += num_bytes
        self._bytes[turn.client] = self._bytes.get(turn.client, 0) + num_bytes
        if not self._bytes[turn.client]:
            del self._bytes[turn.client]
