"""What the ledger writes of each request, and what becomes of it when the file can't be written."""

import logging
import sqlite3
import threading
import time

import pytest

from switchyard.app.ledger import rows
from switchyard.app.ledger import writer as writing
from switchyard.app.ledger.rows import Ended, Refusal
from tests.operations.conftest import bearer
from tests.operations.ledgers import DAYS, URL, post, read, timed
from tests.scripted import ScriptedBackend, endless

BODY = {"prompt": "x", "max_tokens": 2}
ENDED = Ended("a", "", 1.0, 2.0, "ann", "m", URL, 200, "stop", 3, 1, 2, 0, 0, 0)


# Requests


def test_a_row_is_there_while_a_request_runs_and_has_all_of_it_in_the_end(
    make_counted, path, wall, gate
):
    client = make_counted(ScriptedBackend(timed, gate=gate), heartbeat=0.05)
    gate.step(2)
    body = {"prompt": [3, 4, 5], "max_tokens": 2, "stream": True}
    headers = {**bearer("ann"), "X-Request-Id": "mine"}
    response = client.post(URL, json=body, headers=headers)
    for _ in range(3):
        gate.wait_until_held()
    client.ledger._writer.flush(20)
    [(*known, started)] = read(
        path,
        "SELECT request_id, key, model, route, state, prompt_tokens, ended, started FROM requests",
    )
    assert known == ["mine", "ann", "scripted", URL, "open", 3, None]
    assert wall.now - 20 < started < wall.now
    assert read(path, DAYS) == []
    time.sleep(0.01)  # of the time to the first token alone
    gate.open()
    response.get_data()
    response.close()
    client.wait()
    [row] = read(path, "SELECT * FROM requests")
    assert row[0].startswith("cmpl-") and row[1] == "mine"
    assert row[3:12] == (wall.now, "ann", "scripted", URL, 200, "length", 3, 1, 2)
    assert 0 <= row[12] < row[13] <= row[14] and row[15] == "done"
    assert read(path, DAYS) == [("2026-11-30", "ann", 1, 0, 3, 2)]
    assert read(path, "SELECT model, cached_tokens FROM days") == [("scripted", 1)]


def test_the_row_of_a_running_request_has_each_prompt_once(make_open, path, gate):
    client = make_open(ScriptedBackend(gate=gate), heartbeat=0.05)
    body = {"prompt": [[3, 4, 5], [6]], "max_tokens": 2, "n": 2, "stream": True}
    response = client.post(URL, json=body)
    gate.wait_until_held()
    client.ledger._writer.flush(20)
    assert read(path, "SELECT state, prompt_tokens FROM requests") == [("open", 4)]
    gate.open()
    response.get_data()
    response.close()
    client.wait()


def test_a_stream_that_is_cancelled_counts_with_what_it_used_and_is_no_failure(
    make_open, path, gate
):
    client = make_open(ScriptedBackend(endless, gate=gate))
    gate.step(4)
    body = {"prompt": [3, 4, 5], "max_tokens": 500, "stream": True}
    response = client.post(URL, json=body)
    next(iter(response.response))
    for _ in range(4):
        gate.wait_until_held()
    response.close()
    gate.open()
    client.wait()
    [(reason, tokens)] = read(path, "SELECT finish_reason, completion_tokens FROM requests")
    assert reason == "cancelled" and tokens >= 3
    assert read(path, DAYS) == [("2026-11-30", "none", 1, 0, 3, tokens)]


def test_a_refused_generation_is_a_failure_of_its_key_and_no_row(make_counted, path):
    client = make_counted(ScriptedBackend())
    refused = ({"top_p": 7}, {"model": "none"}, {"prompt": 7.5}, {"stop_token_ids": [2**30]})
    for more in refused:
        body = {"prompt": "x", **more}
        assert post(client, body, headers=bearer("ann")).status_code in (400, 404)
    client.wait(4)
    day = ("2026-11-30", "ann")  # of three the model is unknown
    assert read(path, DAYS) == [(*day, 3, 3, 0, 0), (*day, 1, 1, 0, 0)]
    assert read(path, "SELECT * FROM requests") == []


def test_what_is_nobodys_or_no_generation_is_not_in_it(make_counted, path):
    client = make_counted(ScriptedBackend())
    assert post(client, BODY).status_code == 401
    assert post(client, BODY, headers=bearer("wrong")).status_code == 401
    for route, status in (("/tokenize", 400), ("/v1/completions/none", 404)):
        with client.post(route, json={}, headers=bearer("ann")) as response:
            assert response.status_code == status
    assert post(client, BODY, headers=bearer("ann")).status_code == 200
    client.wait(5)
    assert [row[1:4] for row in read(path, DAYS)] == [("ann", 1, 0)]


def test_a_request_is_of_the_day_on_which_it_ended(make_open, path, wall, gate):
    client = make_open(ScriptedBackend(gate=gate), heartbeat=0.05)
    response = client.post(URL, json={**BODY, "stream": True})
    gate.wait_until_held()
    wall.now += 1
    gate.open()
    response.get_data()
    response.close()
    client.wait()
    assert [row[:3] for row in read(path, DAYS)] == [("2026-12-01", "none", 1)]
    started, ended = read(path, "SELECT started, ended FROM requests")[0]
    assert started < 1796083200 <= ended


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(("later", "day"), [(0, "2026-11-30"), (1, "2026-12-01")])
def test_days_are_those_of_utc_wherever_the_server_is(make_counted, path, wall, later, day):
    client = make_counted(ScriptedBackend())
    wall.now += later
    for body in (BODY, {}):  # the second is refused
        post(client, body, headers=bearer("ann"))
    client.wait(2)
    assert {row[0] for row in read(path, DAYS)} == {day}


def test_rows_that_end_together_add_up_by_day_key_and_model(make_counted, path, wall, monkeypatch):
    monkeypatch.setattr(writing, "INTERVAL", 1000)
    client = make_counted(ScriptedBackend())
    for later, name, number in ((0, "ann", 1), (0, "bob", 2), (0, "ann", 3), (1, "ann", 4)):
        wall.now += later
        assert post(client, {**BODY, "max_tokens": number}, headers=bearer(name)).status_code == 200
    post(client, {**BODY, "top_p": 7}, headers=bearer("ann"))
    client.wait(5)
    sums = [(row[0], row[1], row[2], row[3], row[5]) for row in read(path, DAYS)]
    assert sums == [
        *(("2026-11-30", "ann", 2, 0, 4), ("2026-11-30", "bob", 1, 0, 2)),
        *(("2026-12-01", "ann", 1, 1, 0), ("2026-12-01", "ann", 1, 0, 4)),
    ]
    took = "min(ended - started BETWEEN 1e-6 AND 20)"
    states = read(path, f"SELECT state, count(*), {took}, min(request_id > '') FROM requests")
    assert states == [("done", 4, 1, 1)]


# Its thread


def refuse(ledger):
    """An entry."""
    ledger.start()
    ledger._writer.put(Refusal(ledger._clock(), "ann"))


class Full:
    """A connection whose disk is full until there is `room`; `refused` is set once it was asked."""

    def __init__(self, connection, error):
        self._connection, self._error = connection, error
        self.room, self.refused = threading.Event(), threading.Event()

    def execute(self, statement, *values):
        if statement.startswith("BEGIN") and not self.room.is_set():
            self.refused.set()
            raise self._error
        return self._connection.execute(statement, *values)

    def __enter__(self):
        return self._connection.__enter__()

    def __exit__(self, *error):
        return self._connection.__exit__(*error)

    def close(self):
        self._connection.close()


def full_disk(ledger, error=None):
    """It has refused an entry."""
    ledger.start()
    writer = ledger._writer
    full = writer._connection = Full(writer._connection, error or sqlite3.OperationalError("full"))
    refuse(ledger)
    assert full.refused.wait(20)
    return full


@pytest.mark.parametrize("reason", ["database or disk is full", "database is locked"])
def test_a_full_disk_costs_no_request_and_nothing_where_there_is_room_again(
    make_open, path, caplog, monkeypatch, reason
):
    monkeypatch.setattr(writing, "RETRY", 0.01)
    client = make_open(ScriptedBackend())
    client.ledger.start()
    writer = client.ledger._writer
    full = writer._connection = Full(writer._connection, sqlite3.OperationalError(reason))
    for _ in range(3):
        assert post(client, BODY).status_code == 200
    assert full.refused.wait(20)
    full.refused.clear()
    assert full.refused.wait(20)  # it has tried again
    assert read(path, DAYS) == []
    full.room.set()
    client.wait(3)
    assert [row[2] for row in read(path, DAYS)] == [3]
    assert client.ledger.num_errors >= 2
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 1 and reason in told[0]  # in a minute


def test_beyond_a_full_queue_entries_are_dropped_and_counted(ledger, path, monkeypatch):
    monkeypatch.setattr(writing, "MAX_QUEUED", 5)
    monkeypatch.setattr(writing, "RETRY", 600.0)
    full = full_disk(ledger)
    while not ledger.num_errors:
        ledger._writer._thread.join(0.01)
    before = ledger.num_errors
    for _ in range(7):
        refuse(ledger)
    assert ledger.num_errors - before == 3
    full.room.set()
    ledger.close()
    assert [row[2] for row in read(path, DAYS)] == [5]


def test_a_reader_sees_what_came_while_earlier_entries_were_written(ledger, path, monkeypatch):
    begun, turns, found = threading.Semaphore(0), threading.Semaphore(0), []

    def write(*batch):
        begun.release()
        assert turns.acquire(timeout=20)
        rows.write(*batch)

    monkeypatch.setattr(writing, "write", write)
    refuse(ledger)
    assert begun.acquire(timeout=20)
    refuse(ledger)
    writer = ledger._writer
    reader = threading.Thread(target=lambda: (writer.flush(20), found.extend(read(path, DAYS))))
    reader.start()
    while not writer._is_awaited:
        reader.join(0.01)
    turns.release()
    assert begun.acquire(timeout=20)  # the first entry is written, the second is not
    reader.join(0.05)
    assert found == []
    turns.release()
    reader.join(20)
    assert [row[2] for row in found] == [2]


def test_an_entry_that_no_time_mends_is_dropped_and_the_thread_goes_on(ledger, path):
    full = full_disk(ledger, sqlite3.DatabaseError("malformed"))
    ledger._writer.flush(20)
    assert ledger.num_errors == 1
    full.room.set()
    refuse(ledger)
    ledger._writer.flush(20)
    assert [row[2] for row in read(path, DAYS)] == [1]


@pytest.mark.parametrize("is_together", [True, False])
def test_an_end_that_comes_twice_counts_once(ledger, path, is_together):
    ledger.start()
    for _ in range(2):
        ledger._writer.put(ENDED)
        if not is_together:
            ledger._writer.flush(20)
    ledger.close()
    assert read(path, DAYS) == [("1970-01-01", "ann", 1, 0, 3, 2)]


def test_all_that_is_queued_is_written_at_the_end(ledger, path, monkeypatch):
    monkeypatch.setattr(writing, "INTERVAL", 1000)
    for _ in range(100):
        refuse(ledger)
    ledger.close()
    assert [row[2] for row in read(path, DAYS)] == [100]
    refuse(ledger)  # later: harmless
    assert ledger.num_errors == 1
