"""What operations do only in time, or at a cost that no answer tells: the ledger's thread and its
file, addresses that are refused, looks at the file of keys.
"""

import os
import threading
from datetime import date
from types import SimpleNamespace

import pytest

from switchyard.app.exceptions import LimitReached
from switchyard.app.ledger import rows
from switchyard.app.ledger import writer as writing
from switchyard.app.ledger.budgets import _renewal, _Spent
from switchyard.app.ledger.ledger import Ledger
from switchyard.app.ledger.rows import Begun
from switchyard.app.ledger.writer import DAY
from switchyard.app.operations import failures, keyring
from switchyard.app.operations.account import Account
from switchyard.app.operations.failures import Failures
from switchyard.app.operations.keys import parse_keys
from switchyard.app.operations.limits import Quotas
from switchyard.engine.messages import Timings
from switchyard.engine.stream import Used
from tests.operations.conftest import Clock, bearer, entry
from tests.operations.ledgers import URL, read
from tests.operations.test_ledger import ENDED, full_disk, refuse
from tests.operations.test_ledger_start import insert
from tests.scripted import ScriptedBackend, job

# The ledger's thread


def test_an_idle_ledger_is_woken_once_a_day_whatever_it_keeps(path, wall):
    for days in (0, 3):
        ledger = Ledger(str(path), days, False, wall)
        refuse(ledger)
        ledger._writer.flush(20)
        ledger.close()
        assert ledger._writer._next_prune == wall.now + DAY


def test_rows_go_when_they_are_a_day_too_old_but_for_those_at_work(path, wall):
    ledger = Ledger(str(path), 3, False, wall)
    refuse(ledger)
    ledger._writer.flush(20)
    begin = wall.now
    for name, state in (("old", "done"), ("open", "open")):
        insert(path, (name, begin - 2.5 * DAY, state))
    wall.now += DAY
    for _ in range(2):  # the first is written before rows are looked at
        refuse(ledger)
        ledger._writer.flush(20)
    left = read(path, "SELECT id FROM requests")
    ledger.close()
    assert left == [("open",)]


def test_a_ledger_that_waits_for_room_ends_at_once_and_closes_its_file(ledger, path, monkeypatch):
    monkeypatch.setattr(writing, "RETRY", 25.0)
    full_disk(ledger)
    closing = threading.Thread(target=ledger.close)
    closing.start()
    closing.join(10)
    assert not closing.is_alive() and not ledger._writer._thread.is_alive()
    assert ledger.num_errors == 3  # two commits, and the entry
    assert not os.path.exists(f"{path}-wal")  # which SQLite removes with the last connection


def test_entries_gather_for_an_interval_again_behind_a_flush(ledger, path, monkeypatch):
    monkeypatch.setattr(writing, "INTERVAL", 600.0)
    refuse(ledger)
    ledger._writer.flush(20)
    commits = []
    ledger._writer._connection.set_trace_callback(commits.append)
    refuse(ledger)
    ledger._writer._thread.join(0.3)
    assert commits == [] and len(ledger._writer._entries) == 1


def test_only_the_first_of_entries_that_gather_wakes_the_thread(ledger, monkeypatch):
    monkeypatch.setattr(writing, "INTERVAL", 600.0)
    ledger.start()
    wakes = []
    notify = ledger._writer._changed.notify_all
    ledger._writer._changed.notify_all = lambda: wakes.append(1) or notify()
    for _ in range(10):
        refuse(ledger)
    assert len(wakes) == 1


def test_failures_are_told_again_behind_the_silence(ledger, monkeypatch, caplog):
    monkeypatch.setattr(writing, "RETRY", 0.005)
    monkeypatch.setattr(writing, "SILENCE", 0.02)
    full = full_disk(ledger)
    for _ in range(100):
        assert full.refused.wait(20)
        full.refused.clear()
        if len(caplog.records) > 1:
            break
    full.room.set()
    assert len(caplog.records) > 1 and "(1 errors so far)" not in caplog.text.splitlines()[-1]


def test_what_begins_and_ends_together_takes_one_statement_a_row(path):
    said = []
    connection = SimpleNamespace(
        execute=lambda statement, values: said.append(statement) or SimpleNamespace(rowcount=1)
    )
    begun = Begun("a", "", 1.0, "ann", "m", URL, 3)
    rows.write(connection, [begun, ENDED])
    assert rows.BEGIN not in said and len(said) == 2  # the row, and its share of the day
    rows.write(connection, [begun])
    assert said[2:] == [rows.BEGIN]


@pytest.mark.parametrize(
    ("status", "reason", "has_failed"),
    [
        *((200, "stop", False), (399, None, False), (400, None, True), (499, "cancelled", False)),
        *((498, None, True), (500, None, True), (None, None, False), (200, "stop,failed", True)),
    ],
)
def test_what_counts_as_failed(status, reason, has_failed):
    entry = ENDED._replace(status=status, finish_reason=reason)
    assert entry.has_failed is has_failed
    assert entry.sums == (1, has_failed, 3, 1, 2)


# Its file


def test_the_file_is_written_as_sqlite_is_fast_and_its_rows_are_found_by_an_index(ledger):
    ledger.start()
    ask = ledger._writer._connection.execute
    settings = {"synchronous": 1, "busy_timeout": 1000, "journal_mode": "wal"}
    assert {name: ask(f"PRAGMA {name}").fetchone()[0] for name in settings} == settings
    for where, index in (
        ("started < 1 AND state != 'open'", "requests_started"),
        ("state = 'open'", "requests_open"),
    ):
        [plan] = ask(f"EXPLAIN QUERY PLAN SELECT id FROM requests WHERE {where}").fetchall()
        assert index in plan[-1]


def test_who_reads_the_ledger_leaves_no_file_open(ledger, path):
    refuse(ledger)

    def num_open():
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return sum(os.path.exists(fd) and str(path) in os.readlink(fd) for fd in links)

    ledger._writer.flush(20)
    before = num_open()
    for _ in range(3):
        [row] = ledger.usage(date(2026, 11, 1), date(2026, 12, 1), ["key"], None, 10)
        assert row["failed"] == 1
    assert num_open() <= before + 1  # SQLite keeps one for the next


def test_a_ledger_that_another_server_has_is_asked_for_once(ledger, path, monkeypatch, caplog):
    monkeypatch.setattr("switchyard.app.ledger.ledger.OTHERS", 0.0)
    ledger.start()
    other = Ledger(str(path), 400, False)
    account = Account()
    account.is_host, account.identifiers = True, ["a-0"]
    for _ in range(3):  # requests go on without
        other.begin(account)
        other.end(account)
    assert len([r for r in caplog.records if "nothing is written" in r.getMessage()]) == 1
    other.start()  # nor later
    assert other._open() is None


# Accounts


def test_the_longest_wait_and_the_first_token_of_a_request_are_told():
    account = Account()
    account.expect("m", [job("r-0"), job("r-1"), job("r-2")], 3, False)
    for identifier, timings in (("r-0", Timings(3.0, 5.0, 1.0)), ("r-1", Timings(1.0, 2.0, 1.0))):
        account.note(Used(identifier, 3, 1, 2, 4, "stop", timings))
    account.note(Used("r-2", 3, 1, 2, 0, "cancelled", Timings(0.5, 0.5, 0.0)))  # without a token
    account.answered()
    told = account.consumption
    assert (told.queue, told.first_token) == (3.0, 3.0)
    assert (told.prompt_tokens, told.cached_tokens, told.new_tokens) == (3 + 2 + 2, 1, 8)


def test_each_token_is_owed_once_however_often_a_job_is_told_of():
    [key] = parse_keys(entry("ann", tpm=100), 0).by_name.values()
    account = Account()
    account.quota = Quotas(Clock()).of(key)
    account.expect("m", [job("r-0")], 1, True)
    for computed, new in ((2, 0), (4, 1), (4, 3), (4, 5)):
        account.note(Used("r-0", 5, 1, computed, new, None, None))
    assert account.quota.tokens.level().remaining == 100 - (4 + 5)
    assert account.tokens == 5 + 5


@pytest.mark.parametrize(
    ("is_used", "has_begun", "phase"),
    [(True, True, "decode"), (True, False, "prefill"), (False, False, "pending")],
)
def test_a_client_leaves_at_what_its_jobs_are_at(is_used, has_begun, phase):
    account = Account()
    account.expect("m", [job("r-0")], 1, True)
    if is_used:
        account.note(Used("r-0", 3, 1, 2, 0, None, None))
    account.leave(has_begun)
    assert account.gone == phase


# Keys


def is_refused(found, address="10.0.0.1"):
    try:
        found.check(address)
    except LimitReached:
        return True
    return False


def test_of_very_many_addresses_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(failures, "MAX_ADDRESSES", 3)
    found = Failures(Clock())
    for i in range(3):
        for _ in range(failures.MOST):
            found.note(f"10.0.0.{i}")
    found.note("10.0.0.9")
    assert [is_refused(found, f"10.0.0.{i}") for i in range(3)] == [False, True, True]
    assert len(found._by_address) == 3


def test_wrong_keys_are_forgotten_after_a_minute_and_so_is_a_refusal():
    clock = Clock()
    found = Failures(clock)
    for number in (failures.MOST - 1, failures.MOST, failures.MOST):
        for i in range(number):
            assert not is_refused(found), i
            found.note("10.0.0.1")
        for wait in (failures.PERIOD - 0.1, 0.1):
            assert is_refused(found) == (number == failures.MOST)
            clock.now += wait


def test_the_file_of_keys_is_looked_at_once_a_second_however_many_ask(
    make_keyed, clock, monkeypatch
):
    client = make_keyed(ScriptedBackend())
    looks = []
    look = keyring.signature_of
    monkeypatch.setattr(keyring, "signature_of", lambda path: looks.append(path) or look(path))
    for expected in (1, 2):
        clock.now += 1
        for _ in range(5):
            assert client.get("/v1/models", headers=bearer("ann")).status_code == 200
        assert len(looks) == expected


def test_a_month_is_renewed_on_its_first_day_however_long_it_was():
    december, february = 1798675200.0, 1803859199.0  # 2026-12-31, the last second of 2027-02
    assert _renewal("month", december).endswith("at 2027-01-01T00:00:00Z")
    assert _renewal("month", december + 31 * 86400).endswith("at 2027-02-01T00:00:00Z")
    assert _renewal("month", february).endswith("at 2027-03-01T00:00:00Z")
    assert _renewal("day", february).endswith("at 2027-03-01T00:00:00Z")


def test_a_clock_that_is_set_back_renews_no_budget():
    spent = _Spent("2026-12-01", 1, 2, 3)
    for period, tokens in (("day", 1), ("month", 2), ("total", 3)):
        assert spent.within(period, "2026-11-30") == tokens
    assert spent.within("day", "2026-12-01") == 1
