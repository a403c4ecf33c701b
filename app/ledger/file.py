"""The SQLite file of the ledger: schema, opening, checks, and requests lost in a crash."""

import contextlib
import os
import sqlite3

from switchyard.settings import SettingsError

VERSION = 1  # the version of the tables, in SQLite's user_version
BUSY = 1.0  # seconds to wait for another program's lock on the file
PRUNED = 1000  # rows deleted in one transaction, so that a server's entries don't wait for long

TABLES = {"requests", "days"}
SCHEMA = f"""
BEGIN;
CREATE TABLE requests(
    id TEXT PRIMARY KEY, request_id TEXT, started REAL, ended REAL, key TEXT, model TEXT,
    route TEXT, status INTEGER, finish_reason TEXT, prompt_tokens INTEGER, cached_tokens INTEGER,
    completion_tokens INTEGER, queue_ms INTEGER, ttft_ms INTEGER, duration_ms INTEGER, state TEXT
) WITHOUT ROWID;
CREATE INDEX requests_started ON requests(started);
CREATE INDEX requests_open ON requests(state) WHERE state = 'open';
CREATE TABLE days(
    day TEXT, key TEXT, model TEXT, requests INTEGER, failed INTEGER, prompt_tokens INTEGER,
    cached_tokens INTEGER, completion_tokens INTEGER, PRIMARY KEY(day, key, model)
) WITHOUT ROWID;
PRAGMA user_version = {VERSION};
COMMIT;
"""

ADD_TO_DAY = """
INSERT INTO days VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT(day, key, model) DO UPDATE SET
    requests = requests + excluded.requests, failed = failed + excluded.failed,
    prompt_tokens = prompt_tokens + excluded.prompt_tokens,
    cached_tokens = cached_tokens + excluded.cached_tokens,
    completion_tokens = completion_tokens + excluded.completion_tokens
"""


class LedgerError(SettingsError):
    """The ledger can't be used. The message names the file, and says how to fix the problem."""


def open_file(path: str) -> sqlite3.Connection:
    """Opens the file for writing from any thread. Raises LedgerError.

    A missing file is created, readable only by its owner.
    """
    connection = None
    try:
        # SQLite gives the files that it creates beside this one the same mode.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(
            path, timeout=BUSY, isolation_level=None, check_same_thread=False
        )
        _check(connection, path)
        [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":  # some network file systems don't support WAL
            raise LedgerError(
                f"ledger {path} must be on a local disk: SQLite chose {mode} instead of wal"
            )
        connection.execute("PRAGMA synchronous = NORMAL")
        if _version(connection) == 0:
            connection.executescript(SCHEMA)
    except (OSError, sqlite3.OperationalError) as reason:
        _close(connection)
        raise LedgerError(f"ledger {path} can't be written: {reason}") from None
    except sqlite3.DatabaseError as reason:
        _close(connection)
        raise _damaged(path, str(reason)) from None
    except LedgerError:
        _close(connection)
        raise
    return connection


def open_to_read(path: str) -> sqlite3.Connection:
    """Opens the file for reading, even while a server writes to it. Raises sqlite3.Error."""
    name = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return sqlite3.connect(f"file:{name}?mode=ro", timeout=BUSY, isolation_level=None, uri=True)


def back_up(path: str, target: str) -> None:
    """Replaces `target` atomically with a complete copy, even while a server writes to the file.
    Raises LedgerError.
    """
    if not os.path.isfile(path):
        raise LedgerError(f"ledger {path}: there is no such file")
    if os.path.exists(target) and os.path.samefile(path, target):
        raise LedgerError(f"ledger {path} can't be its own backup: name another file")
    fresh = f"{target}-new"
    try:
        os.close(os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
        with (
            contextlib.closing(open_to_read(path)) as source,
            contextlib.closing(sqlite3.connect(fresh)) as copy,
        ):
            _check(source, path)
            source.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")  # makes the copy a single file
        os.replace(fresh, target)
    except (OSError, sqlite3.Error, LedgerError) as reason:
        with contextlib.suppress(OSError):
            os.remove(fresh)
        if isinstance(reason, LedgerError):
            raise
        raise LedgerError(f"ledger {path} can't be copied to {target}: {reason}") from None


def forget(path: str, key: str) -> tuple[int, int]:
    """Deletes all rows of a key, even while a server writes to the file, and leaves none of their
    bytes in the file. Returns how many rows of requests and how many daily sums were deleted.
    Raises LedgerError.
    """
    if not os.path.isfile(path):
        raise LedgerError(f"ledger {path}: there is no such file")
    with contextlib.closing(open_file(path)) as connection:
        try:
            found = connection.execute("SELECT id FROM requests WHERE key = ?", (key,)).fetchall()
            for start in range(0, len(found), PRUNED):
                with connection:
                    connection.execute("BEGIN IMMEDIATE")
                    some = found[start : start + PRUNED]
                    connection.executemany("DELETE FROM requests WHERE id = ?", some)
            days = connection.execute("DELETE FROM days WHERE key = ?", (key,)).rowcount
            # secure_delete leaves copies that were made when pages were rebalanced.
            connection.execute("VACUUM")
            [is_busy, *_] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if is_busy:
                raise sqlite3.OperationalError("it is being read; try again")
        except sqlite3.Error as reason:
            raise LedgerError(f"ledger {path} can't be changed: {reason}") from None
    return len(found), days


def restore(connection: sqlite3.Connection, path: str) -> sqlite3.Connection:
    """Recreates a removed file from the data that the open connection still has.

    Closes the connection, and returns a connection to the new file. Raises LedgerError,
    sqlite3.Error.
    """
    # Otherwise SQLite would apply these files to the new file.
    for leftover in (f"{path}-wal", f"{path}-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(leftover)
    fresh = open_file(f"{path}-new")
    try:
        connection.backup(fresh)
    finally:
        fresh.close()
    os.replace(f"{path}-new", path)
    opened = open_file(path)
    connection.close()
    return opened


def lose_open(connection: sqlite3.Connection) -> int:
    """Marks as lost all requests that were running when a process crashed. Returns their number.

    Each of them counts as failed on the day on which it began, with the tokens known so far. Raises
    sqlite3.Error.
    """
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(
            """
            INSERT INTO days
            SELECT strftime('%Y-%m-%d', started, 'unixepoch'), key, model, count(*), count(*),
                total(prompt_tokens), total(cached_tokens), total(completion_tokens)
            FROM requests WHERE state = 'open' GROUP BY 1, 2, 3
            ON CONFLICT(day, key, model) DO UPDATE SET
                requests = requests + excluded.requests, failed = failed + excluded.failed,
                prompt_tokens = prompt_tokens + excluded.prompt_tokens,
                cached_tokens = cached_tokens + excluded.cached_tokens,
                completion_tokens = completion_tokens + excluded.completion_tokens
            """
        )
        lost = connection.execute("UPDATE requests SET state = 'lost' WHERE state = 'open'")
        return lost.rowcount


def _check(connection: sqlite3.Connection, path: str) -> None:
    """Checks the file's version, tables and integrity. Raises LedgerError,
    sqlite3.DatabaseError.
    """
    version = _version(connection)
    if version > VERSION:
        raise LedgerError(
            f"ledger {path} was written by a newer version of Switchyard (format {version}; this"
            f" version uses {VERSION}): run that version, or name another file"
        )
    found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not (found >= TABLES if version else not found):
        raise LedgerError(f"ledger {path} is another program's database: name another file")
    [said] = connection.execute("PRAGMA quick_check(1)").fetchone()
    if said != "ok":
        raise _damaged(path, str(said))


def _version(connection: sqlite3.Connection) -> int:
    [version] = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _damaged(path: str, reason: str) -> LedgerError:
    return LedgerError(
        f"ledger {path} is damaged ({' '.join(reason.split())}): put a backup in its place, or"
        f" move it and {path}-wal away to begin a new one"
    )


def _close(connection: sqlite3.Connection | None) -> None:
    if connection is not None:
        connection.close()
