"""The entries of the ledger: rows of requests, and their contributions to a day's sums."""

import operator
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from switchyard.app.ledger.file import ADD_TO_DAY

CLIENT_GONE = 499  # the status if the client left, which doesn't count as a failure

BEGIN = """
INSERT OR IGNORE INTO requests(id, request_id, started, key, model, route, prompt_tokens, state)
VALUES (?, ?, ?, ?, ?, ?, ?, 'open')
"""
# An INSERT is used because the row for the request's beginning may have been dropped. A row that
# has ended never changes.
END = """
INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'done')
ON CONFLICT(id) DO UPDATE SET
    ended = excluded.ended, status = excluded.status, finish_reason = excluded.finish_reason,
    prompt_tokens = excluded.prompt_tokens, cached_tokens = excluded.cached_tokens,
    completion_tokens = excluded.completion_tokens, queue_ms = excluded.queue_ms,
    ttft_ms = excluded.ttft_ms, duration_ms = excluded.duration_ms, state = excluded.state
WHERE requests.state = 'open'
"""

OfDay = tuple[str, str, str]  # day, key, model
Sums = tuple[int, ...]  # requests, failed requests, prompt tokens, cached tokens, new tokens


def day_of(time: float) -> str:
    """The day of a Unix time, in UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")


class Begun(NamedTuple):
    """A request whose jobs were submitted."""

    id: str  # the response's identifier
    request_id: str
    started: float  # Unix time
    key: str
    model: str
    route: str
    prompt_tokens: int


class Ended(NamedTuple):
    """A request whose answer and jobs have ended. In its fields, None means unknown."""

    id: str
    request_id: str
    started: float
    ended: float
    key: str
    model: str
    route: str
    status: int | None
    finish_reason: str | None
    prompt_tokens: int | None
    cached_tokens: int | None
    completion_tokens: int | None
    queue_ms: int | None
    ttft_ms: int | None
    duration_ms: int

    def write(self, connection: sqlite3.Connection) -> bool:
        """Writes the row. Returns whether it is new. A new row counts toward its day's sums."""
        return connection.execute(END, self).rowcount > 0

    @property
    def of_day(self) -> OfDay:
        return day_of(self.ended), self.key, self.model

    @property
    def sums(self) -> Sums:
        tokens = self.prompt_tokens, self.cached_tokens, self.completion_tokens
        return (1, self.has_failed, *(number or 0 for number in tokens))

    @property
    def has_failed(self) -> bool:
        is_refused = (self.status or 0) >= 400 and self.status != CLIENT_GONE
        return is_refused or "failed" in (self.finish_reason or "")


class Refusal(NamedTuple):
    """A generation request that was refused before it had jobs. The refusal counts only toward the
    day's sums.

    `model`: empty if the request was refused before its model was known. Such a refusal comes from
    a limit that is checked before the body is read, or is caused by a parameter.
    """

    ended: float
    key: str
    model: str = ""

    @property
    def of_day(self) -> OfDay:
        return day_of(self.ended), self.key, self.model

    @property
    def sums(self) -> Sums:
        return (1, 1, 0, 0, 0)


Entry = Begun | Ended | Refusal


def write(connection: sqlite3.Connection, entries: Sequence[Entry]) -> None:
    """Writes rows and days within the caller's transaction, in as few statements as possible.

    At each statement the thread releases the GIL, and has to take the GIL back from a request
    thread.
    """
    ended = {entry.id for entry in entries if isinstance(entry, Ended)}
    days: dict[OfDay, list[int]] = {}
    for entry in entries:
        if isinstance(entry, Begun):
            if entry.id not in ended:  # the row of a request's end is complete by itself
                connection.execute(BEGIN, entry)
        elif isinstance(entry, Refusal) or entry.write(connection):
            of_day = days.setdefault(entry.of_day, [0] * len(entry.sums))
            of_day[:] = map(operator.add, of_day, entry.sums)
    for names, sums in days.items():
        connection.execute(ADD_TO_DAY, (*names, *sums))
