"""The ledger: a row with the usage of each request, and sums for each day."""

import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import Any

import flask

from switchyard.app.http.request_id import request_id
from switchyard.app.ledger.budgets import Budgets
from switchyard.app.ledger.file import LedgerError, lose_open, open_file
from switchyard.app.ledger.rows import Begun, Ended, Refusal
from switchyard.app.ledger.usage import read_usage
from switchyard.app.ledger.writer import LedgerWriter
from switchyard.app.operations.account import NO_KEY, Account
from switchyard.app.operations.keys import ApiKey

logger = logging.getLogger(__name__)

FLUSH = 0.2  # seconds that a reader waits for entries to be written
LAST_WRITE = 5.0  # seconds to write the last entries at the end
OTHERS = 5.0  # seconds for another process, which is ending, to unlock the file


class Ledger:
    """The ledger of one application, as a Recorder. The ledger opens its file at `start`, or at the
    first request, so the process may fork before then. Only one process at a time may write to a
    file.
    """

    def __init__(
        self, path: str, days: int, has_keys: bool, clock: Callable[[], float] = time.time
    ) -> None:
        """`days`: the number of days for which rows of requests are kept; 0 means forever.
        `has_keys`: whether there are API keys; if so, requests without a key are not recorded.
        Raises LedgerError if the file can't be used.
        """
        self._path = os.path.abspath(path)
        self._days = days
        self._has_keys = has_keys
        self._clock = clock
        self._starting = threading.Lock()  # held while the file is opened
        self._writer: LedgerWriter | None = None
        self._is_over = False  # whether the ledger was closed or could not be started
        self._lock_file = -1
        self._budgets = Budgets(clock)
        open_file(self._path).close()

    @property
    def num_errors(self) -> int:
        """The number of dropped entries plus the number of failed commits."""
        return 0 if self._writer is None else self._writer.num_errors

    def start(self) -> None:
        """Opens the file, and starts the writer. Raises LedgerError. Idempotent."""
        with self._starting:
            if self._writer is not None or self._is_over:
                return
            self._is_over = True
            self._lock_file = _lock(self._path)
            try:
                connection = open_file(self._path)
                num_lost = lose_open(connection)
                self._budgets.load(connection)
            except sqlite3.Error as reason:
                raise LedgerError(f"ledger {self._path}: {reason}") from None
            if num_lost:
                logger.warning(
                    "the ledger has %d requests that were lost when a process was killed", num_lost
                )
            self._writer = LedgerWriter(self._path, connection, self._days, self._clock)
            self._is_over = False

    def close(self) -> None:
        """Writes the remaining entries, within LAST_WRITE seconds, and unlocks the file."""
        with self._starting:
            self._is_over = True
            if self._writer is not None:
                self._writer.close(LAST_WRITE)
            if self._lock_file >= 0:
                os.close(self._lock_file)
                self._lock_file = -1

    def reopen(self) -> None:
        """Lets the next request start the ledger again after `close`."""
        with self._starting:
            self._writer, self._is_over = None, False

    # Request threads

    def reserve(self, key: ApiKey, least: int, wanted: int) -> int:
        """Like `Budgets.reserve`, but first opens the file if necessary."""
        self._open()
        return self._budgets.reserve(key, least, wanted)

    def begin(self, account: Account) -> None:
        key = self._key_of(account)
        route = _route_of(account)
        if key is None or route is None:
            return
        if (writer := self._open()) is None:
            return
        writer.put(
            Begun(
                _id_of(account),
                request_id(),
                self._clock() - (time.monotonic() - account.begun),
                key,
                account.model,
                route,
                account.prompt_tokens,
            )
        )

    def usage(
        self, first: date, last: date, groups: Sequence[str], key: str | None, most: int
    ) -> list[dict[str, Any]]:
        """Like `read_usage`, including requests that have just ended. Raises sqlite3.Error."""
        if self._writer is not None:
            self._writer.flush(FLUSH)
        return read_usage(self._path, first, last, groups, key, most)

    def spent(self, keys: Iterable[ApiKey]) -> list[tuple[ApiKey, int]]:
        """Like `Budgets.spent`, but first opens the file if necessary."""
        self._open()
        return self._budgets.spent(keys)

    # Link's thread

    def extend(self, key: ApiKey, wanted: int) -> int:
        """See `Budgets.extend`."""
        return self._budgets.extend(key, wanted)

    def give_back(self, key: ApiKey, tokens: int) -> None:
        """Gives back reserved tokens. A request thread or the alarms' thread may call it too."""
        self._budgets.give_back(key, tokens)

    # Request threads, or the alarms' thread

    def end(self, account: Account) -> None:
        key = self._key_of(account)
        if key is None:
            return
        entry: Ended | Refusal
        if account.identifiers:
            entry = self._ended(account, key)
            self._budgets.add(key, account.tokens, entry.ended)
        elif account.is_generation and account.said.get("status", 0) >= 400:
            entry = Refusal(self._clock(), key, account.model)
        else:
            return
        if (writer := self._open()) is not None:
            writer.put(entry)

    def _open(self) -> LedgerWriter | None:
        if self._writer is None and not self._is_over:
            try:
                self.start()
            except LedgerError as reason:
                logger.error("the ledger can't be opened, so nothing is written: %s", reason)
        return self._writer

    def _key_of(self, account: Account) -> str | None:
        """The name under which a request is recorded. None if there are keys and the request has no
        valid one. Such requests are not recorded, because any client could fill the file with them.
        """
        if account.payer == NO_KEY and self._has_keys:
            return None
        return account.payer

    def _ended(self, account: Account, key: str) -> Ended:
        usage, said = account.consumption, account.said
        ended = self._clock()
        return Ended(
            _id_of(account),
            said.get("request_id", ""),
            ended - (time.monotonic() - account.begun),
            ended,
            key,
            account.model,
            said.get("route", account.payer),
            said.get("status"),
            usage.finish_reason,
            usage.prompt_tokens,
            usage.cached_tokens,
            usage.new_tokens,
            _ms(usage.queue),
            _ms(usage.first_token),
            round((account.ended - account.begun) * 1000),
        )


def _route_of(account: Account) -> str | None:
    if account.is_host:
        return account.payer
    rule = flask.request.url_rule
    return None if rule is None else rule.rule


def _id_of(account: Account) -> str:
    """The identifier of the response. The identifiers of the jobs are derived from this
    identifier.
    """
    return account.identifiers[0].rpartition("-")[0]


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _lock(path: str) -> int:
    """Locks a file next to the ledger until the returned descriptor is closed.

    Without the lock, a second server would mark the first server's running requests as lost. Raises
    LedgerError.
    """
    try:
        descriptor = os.open(f"{path}-lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as reason:
        raise LedgerError(f"ledger {path} can't be written: {reason}") from None
    deadline = time.monotonic() + OTHERS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise LedgerError(
                    f"ledger {path} is used by another running server: give each server its own"
                    f" file"
                ) from None
            time.sleep(0.05)
