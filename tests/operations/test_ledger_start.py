"""What the ledger finds in its file at a start, and what can't be used."""

import os
import pathlib
import sqlite3

import pytest

from switchyard.app.ledger import writer as writing
from switchyard.app.ledger.file import LedgerError, open_file
from switchyard.app.ledger.ledger import Ledger
from tests.operations.ledgers import DAYS, read
from tests.operations.test_ledger import refuse


def insert(path, *rows):
    """Requests (id, started, state) of a key ann, each with 7 prompt tokens."""
    connection = open_file(str(path))
    connection.executemany(
        "INSERT INTO requests(id, started, state, key, model, prompt_tokens)"
        " VALUES (?, ?, ?, 'ann', 'm', 7)",
        rows,
    )
    connection.close()


def test_what_was_open_is_lost_at_the_next_start_and_counts_once(path, wall):
    insert(path, ("a", wall.now, "open"), ("b", wall.now, "open"), ("c", wall.now, "done"))
    wall.now += 5  # the next day
    for _ in range(2):
        ledger = Ledger(str(path), 0, False, wall)
        ledger.start()
        ledger.close()
    assert read(path, "SELECT id, state FROM requests ORDER BY id") == [
        *(("a", "lost"), ("b", "lost"), ("c", "done"))
    ]
    assert read(path, DAYS) == [("2026-11-30", "ann", 2, 2, 14, 0)]


def test_rows_are_kept_for_so_many_days_and_sums_for_ever(path, wall, monkeypatch):
    monkeypatch.setattr(writing, "PRUNED", 1)
    old = wall.now - 3 * 86400
    insert(path, ("a", old - 1, "done"), ("b", old - 2, "open"), ("c", old + 3600, "done"))
    for days, left in ((0, ["a", "b", "c"]), (3, ["c"])):
        ledger = Ledger(str(path), days, False, wall)
        ledger.start()
        refuse(ledger)
        ledger.close()
        assert [row[0] for row in read(path, "SELECT id FROM requests ORDER BY id")] == left
    ledger = Ledger(str(path), 3, False, wall)
    ledger.start()
    wall.now += 86400  # while it runs
    refuse(ledger)
    ledger.close()
    assert read(path, "SELECT id FROM requests") == []
    assert sum(row[2] for row in read(path, DAYS)) == 4


def not_a_database(path):
    path.write_bytes(b"no database" * 1000)


def torn(path):
    insert(path, *((str(i), 0, "done") for i in range(2000)))
    data = bytearray(path.read_bytes())
    data[8192:40960] = bytes(32768)
    path.write_bytes(data)


def newer(path):
    connection = open_file(str(path))
    connection.execute("PRAGMA user_version = 2")
    connection.close()


def anothers(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE cookies(name)")
    connection.close()


def anothers_of_our_version(path):
    anothers(path)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 1")
    connection.close()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (not_a_database, "is damaged .*put a backup in its place, or move it"),
        (torn, "is damaged .*put a backup in its place, or move it"),
        (
            newer,
            r"was written by a newer version of Switchyard \(format 2; this version uses 1\): run",
        ),
        (anothers, "is another program's database: name another file"),
        (anothers_of_our_version, "is another program's database: name another file"),
        (lambda path: path.mkdir(), "can't be written: .*directory"),
    ],
)
def test_a_file_that_cannot_be_used_ends_the_start_and_stays_as_it_is(path, make, says):
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(LedgerError, match=says) as raised:
        Ledger(str(path), 400, False)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)
    assert before is None or path.read_bytes() == before


def test_a_directory_that_cannot_be_written_ends_the_start():
    with pytest.raises(LedgerError, match=r"/proc/usage\.db can't be written: "):
        Ledger("/proc/usage.db", 400, False)
    with pytest.raises(LedgerError, match=r"no/where/usage\.db can't be written: "):
        Ledger("no/where/usage.db", 400, False)


def test_a_second_server_does_not_take_the_firsts_requests_for_lost(ledger, path, monkeypatch):
    monkeypatch.setattr("switchyard.app.ledger.ledger.OTHERS", 0.0)
    ledger.start()
    other = Ledger(str(path), 400, False)
    with pytest.raises(LedgerError, match="is used by another running server"):
        other.start()
    assert other._open() is None  # and its requests go on without
    opened = [os.path.realpath(file) for file in pathlib.Path("/proc/self/fd").iterdir()]
    assert opened.count(f"{path}-lock") == 1
    ledger.close()
    another = Ledger(str(path), 400, False)
    another.start()
    another.close()


def test_the_file_is_its_owners_alone(ledger, path):
    refuse(ledger)
    assert [p.stat().st_mode & 0o077 for p in path.parent.glob("usage.db*")] == [0] * 4
