"""Usage over a span of days, read from the ledger."""

from collections.abc import Sequence
from datetime import date
from typing import Any

from switchyard.app.ledger.file import open_to_read

GROUPS = ("day", "key", "model")
SUMS = ("requests", "failed", "prompt_tokens", "cached_tokens", "completion_tokens")


def read_usage(
    path: str, first: date, last: date, groups: Sequence[str], key: str | None, most: int
) -> list[dict[str, Any]]:
    """The sums from day `first` to day `last`, grouped and sorted by `groups`, which are in the
    order of GROUPS.

    `key`: sums only the rows of this key; None means all keys. `most`: the maximum number of rows.
    Raises sqlite3.Error.
    """
    names = [name for name in GROUPS if name in groups]  # a client's text never gets into the SQL
    where = "day BETWEEN ? AND ?" + (" AND key = ?" if key is not None else "")
    given = [first.isoformat(), last.isoformat(), *([key] if key is not None else [])]
    columns = [*names, *(f"sum({name})" for name in SUMS)]
    by = ", ".join(names)
    connection = open_to_read(path)
    try:
        rows = connection.execute(
            f"SELECT {', '.join(columns)} FROM days WHERE {where} GROUP BY {by} ORDER BY {by}"
            f" LIMIT {most}",
            given,
        ).fetchall()
    finally:
        connection.close()
    return [dict(zip((*names, *SUMS), row, strict=True)) for row in rows]
