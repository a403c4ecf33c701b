"""The ledger's thread, which writes all entries. A request never waits for it."""

import logging
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from switchyard.app.ledger.file import PRUNED, LedgerError, restore
from switchyard.app.ledger.rows import Entry, write

logger = logging.getLogger(__name__)

MAX_QUEUED = 10_000  # entries that wait to be written; additional ones are dropped
INTERVAL = 0.05  # seconds from an entry to its commit
RETRY = 1.0  # seconds from a failed commit to the next attempt
SILENCE = 60.0  # seconds between two log lines about failures
DAY = 86_400.0

PRUNE = """
DELETE FROM requests WHERE id IN
    (SELECT id FROM requests WHERE started < ? AND state != 'open' LIMIT ?)
"""


class LedgerWriter:
    """Writes entries in a thread. `num_errors` counts dropped entries and failed commits."""

    def __init__(
        self, path: str, connection: sqlite3.Connection, days: int, clock: Callable[[], float]
    ) -> None:
        """`connection`: a connection to the file at `path`. `days`: the number of days for which
        rows of requests are kept; 0 means forever. `clock`: a wall clock.
        """
        self.num_errors = 0
        self._path = path
        self._connection = connection
        self._days = days
        self._clock = clock
        self._next_prune = 0.0  # the next pruning, by `clock`
        self._next_line = 0.0  # the earliest next log line, by the monotonic clock
        self._changed = threading.Condition()  # guards the fields below
        self._entries: deque[Entry] = deque()  # entries that have not been written
        self._num_taken = 0  # entries accepted so far
        self._num_over = 0  # accepted entries that have been written or given up
        self._num_turns = 0  # turns of the writer's thread so far
        self._is_awaited = False  # whether a thread is waiting in `flush`
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
        """Waits at most `timeout` seconds until all earlier entries have been written. By then, a
        removed file has been recreated.
        """
        with self._changed:
            wanted, turns = self._num_taken, self._num_turns
            self._is_awaited = True
            self._changed.notify_all()
            self._changed.wait_for(
                lambda: self._num_over >= wanted and (self._num_turns > turns or self._is_closed),
                timeout,
            )

    def close(self, timeout: float) -> None:
        """Lets the thread write the last entries and then end. Waits at most `timeout` seconds."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(timeout)

    # The writer's thread

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            is_last = self._is_closed
            is_over = self._write(batch)
            with self._changed:
                self._num_turns += 1
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
        """The entries of the next interval. Empty if it is time to prune, or if only a reader is
        waiting. None at the end.
        """
        with self._changed:
            rest = max(self._next_prune - self._clock(), 0)
            self._changed.wait_for(
                lambda: self._entries or self._is_awaited or self._is_closed, min(rest, DAY)
            )
            if self._entries:
                self._changed.wait_for(lambda: self._is_awaited or self._is_closed, INTERVAL)
            self._is_awaited = False
            return None if self._is_closed and not self._entries else list(self._entries)

    def _write(self, batch: Sequence[Entry]) -> bool:
        """Writes all entries or none. Returns False if another attempt may succeed."""
        try:
            if not os.path.exists(self._path):
                self._restore()
            if batch:
                with self._connection:
                    self._connection.execute("BEGIN IMMEDIATE")
                    write(self._connection, batch)
        except (sqlite3.OperationalError, LedgerError, OSError) as reason:  # full disk, locked file
            self._fail(1, reason)
            return False
        except Exception as reason:  # another attempt would fail again, so the thread continues
            self._fail(len(batch), reason)
        return True

    def _restore(self) -> None:
        self._connection = restore(self._connection, self._path)
        logger.error(
            "the ledger %s was removed while the server was running: it was created again, with"
            " all its rows",
            self._path,
        )

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
                "the ledger can't be written; requests continue: %s (%d errors so far)",
                reason,
                self.num_errors,
            )
