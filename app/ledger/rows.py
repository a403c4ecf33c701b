"""What is written: the row of a request, and its share of a day."""

import sqlite3
from datetime import UTC, datetime
from typing import NamedTuple

from switchyard.app.ledger.file import ADD_TO_DAY

CLIENT_GONE = 499  # no fault of the server's, nor a refusal

BEGIN = """
INSERT OR IGNORE INTO requests(id, request_id, started, key, model, route, prompt_tokens, state)
VALUES (?, ?, ?, ?, ?, ?, ?, 'open')
"""
# Also where the beginning was dropped. A row that has ended stays as it is.
END = """
INSERT INTO requests VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'done')
ON CONFLICT(id) DO UPDATE SET
    ended = excluded.ended, status = excluded.status, finish_reason = excluded.finish_reason,
    prompt_tokens = excluded.prompt_tokens, cached_tokens = excluded.cached_tokens,
    completion_tokens = excluded.completion_tokens, queue_ms = excluded.queue_ms,
    ttft_ms = excluded.ttft_ms, duration_ms = excluded.duration_ms, state = excluded.state
WHERE requests.state = 'open'
"""


def day_of(time: float) -> str:
    """In UTC."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")


class Begun(NamedTuple):
    """A request whose jobs were submitted."""

    id: str  # of the response
    request_id: str
    started: float  # Unix time
    key: str
    model: str
    route: str
    prompt_tokens: int

    def write(self, connection: sqlite3.Connection) -> None:
        connection.execute(BEGIN, self)


class Ended(NamedTuple):
    """The same with all that is known of it."""

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

    def write(self, connection: sqlite3.Connection) -> None:
        """The row and the day, or neither."""
        if connection.execute(END, self).rowcount:
            tokens = self.prompt_tokens, self.cached_tokens, self.completion_tokens
            of_day = day_of(self.ended), self.key, self.model
            connection.execute(
                ADD_TO_DAY, (*of_day, self.has_failed, *(number or 0 for number in tokens))
            )

    @property
    def has_failed(self) -> bool:
        is_refused = (self.status or 0) >= 400 and self.status != CLIENT_GONE
        return is_refused or "failed" in (self.finish_reason or "")


class Refusal(NamedTuple):
    """A request for a generation that never had jobs: of a day alone. `model`: empty where it had
    not come so far.
    """

    ended: float
    key: str
    model: str = ""

    def write(self, connection: sqlite3.Connection) -> None:
        connection.execute(ADD_TO_DAY, (day_of(self.ended), self.key, self.model, 1, 0, 0, 0))


Entry = Begun | Ended | Refusal
