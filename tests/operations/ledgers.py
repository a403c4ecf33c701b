"""Servers with a ledger, over the scripted backend, and what is in its file."""

import queue
import sqlite3
import time

import pytest

from switchyard.app.ledger.file import open_file
from switchyard.app.ledger.ledger import Ledger
from switchyard.engine.messages import Chunk, Finished, Prefill, Started

DAYS = "SELECT day, key, requests, failed, prompt_tokens, completion_tokens FROM days ORDER BY 1, 2"
URL = "/v1/completions"


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def timed(job, text="x", cached=1):
    """A script of all that is counted: of its prompt, `cached` tokens were in the cache."""
    total = len(job.prompt)
    yield Started(job.identifier)
    yield Prefill(job.identifier, total, total, cached)
    for i in range(job.max_new_tokens):
        yield Chunk(job.identifier, text, (i,))
    yield Finished(job.identifier, "length", total, job.max_new_tokens, cached)


def post(client, body, **more):
    """To the end: a request has ended once its response is closed."""
    with client.post(URL, json=body, **more) as response:
        response.get_data()
    return response


def read(path, statement):
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "usage.db"


@pytest.fixture(params=["EAST-14", "WEST12"])
def zone(request, monkeypatch):
    """This process's time zone: UTC+14 or UTC-12."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def fill(path):
    """Put rows of days into the file."""

    def fill(*rows):
        connection = open_file(str(path))
        connection.executemany("INSERT INTO days VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.close()

    return fill


@pytest.fixture
def wall():
    """The ledger's clock. It begins on 2026-11-30, a second before midnight."""
    clock = Clock()
    clock.now = 1796083199.0
    return clock


@pytest.fixture
def ledger(path, wall):
    ledger = Ledger(str(path), 400, False, wall)
    yield ledger
    ledger.close()


@pytest.fixture
def follow(wall):
    """Have an application's ledger go by `wall`; closed in the end. What is returned waits until
    that many requests have ended and are in the file.
    """
    ledgers = []

    def follow(client):
        ledger = client.application.extensions["switchyard"].ledger
        ledger._clock = ledger._budgets._clock = wall
        ledgers.append(ledger)
        ended, end = queue.Queue(), ledger.end

        def tell(account):
            end(account)
            ended.put(account)

        ledger.end = tell

        def wait(count=1):
            for _ in range(count):
                ended.get(timeout=20)
            ledger._writer.flush(20)

        client.ledger, client.wait = ledger, wait
        return client

    yield follow
    for ledger in ledgers:
        ledger.close()


@pytest.fixture
def make_counted(make_keyed, follow, path):
    """As `make_keyed`, with a ledger."""
    return lambda backend, **settings: follow(make_keyed(backend, ledger=str(path), **settings))


@pytest.fixture
def make_open(make_client, follow, path):
    """The same without keys."""
    return lambda backend, **settings: follow(
        make_client(backend, **{"ledger": str(path), **settings})
    )
