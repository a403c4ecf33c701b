"""The thread that writes the ledger. A request never waits for it."""

import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from switchyard.app.ledger.rows import Entry, write

logger = logging.getLogger(__name__)

MAX_QUEUED = 10_000  # entries that are not written yet
INTERVAL = 0.05  # seconds from an entry to its commit
RETRY = 1.0  # seconds from a commit that fails to the next try
SILENCE = 60.0  # seconds from one line of the log about failures to the next
DAY = 86_400.0
PRUNED = 1000  # rows at once, so that entries wait for no more

PRUNE = """
DELETE FROM requests WHERE id IN
    (SELECT id FROM requests WHERE started < ? AND state != 'open' LIMIT ?)
"""


class LedgerWriter:
    """`num_errors`: entries that were dropped, and commits that failed."""

    def __init__(
        self, connection: sqlite3.Connection, days: int, clock: Callable[[], float]
    ) -> None:
        """`days`: for which rows of requests are kept; 0: for ever. `clock`: of the wall."""
        self.num_errors = 0
        self._connection = connection
        self._days = days
        self._clock = clock
        self._next_prune = 0.0  # by the clock
        self._next_line = 0.0  # by the monotonic clock
        self._changed = threading.Condition()  # guards what follows
        self._entries: deque[Entry] = deque()  # that are not written
        self._num_taken = 0  # of all entries so far
        self._num_over = 0  # of them, written or given up
        self._is_awaited = False  # somebody flushes
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        self._thread.start()

    # Any thread

    def put(self, entry: Entry) -> None:
        with self._changed:
            if self._is_closed or len(self._entries) >= MAX_QUEUED:
                self.num_errors += 1
                return
            self._entries.append(entry)
            self._num_taken += 1
            if len(self._entries) == 1:
                self._changed.notify_all()

    def flush(self, timeout: float) -> None:
        """Wait until all is written that was put before; not for longer than that, in seconds."""
        with self._changed:
            wanted = self._num_taken
            self._is_awaited = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._num_over >= wanted, timeout)

    def close(self, timeout: float) -> None:
        """With all written that can be."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(timeout)

    # Its own thread

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            is_last = self._is_closed
            is_over = self._write(batch)
            with self._changed:
                if is_over:
                    for _ in batch:
                        self._entries.popleft()
                    self._num_over += len(batch)
                    self._changed.notify_all()
                elif is_last:
                    self.num_errors += len(self._entries)
                    break
                else:
                    self._changed.wait_for(lambda: self._is_closed, RETRY)
            self._prune()
        self._connection.close()

    def _next(self) -> Sequence[Entry] | None:
        """What has come within an interval; nothing where a day has passed; None at the end."""
        with self._changed:
            rest = max(self._next_prune - self._clock(), 0)
            self._changed.wait_for(lambda: self._entries or self._is_closed, min(rest, DAY))
            if self._entries:
                self._changed.wait_for(lambda: self._is_awaited or self._is_closed, INTERVAL)
            self._is_awaited = False
            return None if self._is_closed and not self._entries else list(self._entries)

    def _write(self, batch: Sequence[Entry]) -> bool:
        """All of it or nothing. Whether there is no use in another try."""
        try:
            with self._connection:
                self._connection.execute("BEGIN IMMEDIATE")
                write(self._connection, batch)
        except sqlite3.OperationalError as reason:  # no room, or locked
            self._fail(1, reason)
            return False
        except Exception as reason:  # nothing that time mends; the thread goes on
            self._fail(len(batch), reason)
        return True

    def _prune(self) -> None:
        now = self._clock()
        if now < self._next_prune:
            return
        self._next_prune = now + DAY
        try:
            while self._days:
                oldest = now - self._days * DAY
                pruned = self._connection.execute(PRUNE, (oldest, PRUNED))
                if pruned.rowcount < PRUNED:
                    break
        except sqlite3.Error as reason:
            self._fail(1, reason)

    def _fail(self, number: int, reason: Exception) -> None:
        self.num_errors += number
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + SILENCE
            logger.error(
                "the ledger can't be written, requests go on: %s (%d errors so far)",
                reason,
                self.num_errors,
            )
