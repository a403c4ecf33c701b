"""Connections that break in the middle of an answer, over real sockets and the real generator."""

import json
import re
import threading
import time

import pytest

from tests.app.conftest import listed_name
from tests.faults.conftest import open_request
from tests.live.conftest import shared_server
from tests.live.test_serving import greedy, in_threads

URL = "/v1/completions"


keeping = shared_server(resume_timeout=30)


def events(received):
    """(id, data) of the events that have arrived whole. Chunk sizes stand on lines of their own."""
    body = re.sub(rb"\r\n[0-9A-F]+\r\n", b"", received.partition(b"\r\n\r\n")[2])
    found = re.findall(rb"id: (\S+)\ndata: (.+)\n\n", body)
    return [(identifier.decode(), data.decode()) for identifier, data in found]


def text_of(data):
    bodies = [json.loads(item) for item in data if item != "[DONE]"]
    return "".join(body["choices"][0]["text"] for body in bodies)


def read_until(connection, count):
    received = b""
    while len(events(received)) < count and (part := connection.recv(64)):
        received += part
    return events(received)


def take_up(server, last_id, how):
    headers = {"Last-Event-ID": last_id}
    if how == "POST":
        return server.post(URL, {}, headers=headers)
    return server.get(f"/v1/streams/{last_id.rpartition(':')[0]}", headers=headers)


def events_of(response):
    assert response.status_code == 200
    return re.findall(r"id: (\S+)\ndata: (.+)\n\n", response.text)


@pytest.mark.parametrize("how", ["GET", "POST"])
def test_a_killed_connection_loses_and_doubles_nothing(keeping, how):
    """Killed again and again, at every place of the text."""
    body = greedy("Once upon a time", 200, ignore_eos=True)
    whole = keeping.post(URL, body).json()["choices"][0]["text"]
    total = len(events_of(keeping.post(URL, {**body, "stream": True})))
    for count in (1, 2, total // 2, total - 2):
        connection = open_request(keeping, {**body, "stream": True})
        read = read_until(connection, count)
        connection.close()
        rest = events_of(take_up(keeping, read[-1][0], how))
        every = [*read, *rest]
        assert [int(i.rpartition(":")[2]) for i, _ in every] == list(range(1, len(every) + 1))
        assert text_of(data for _, data in every) == whole
        assert every[-1][1] == "[DONE]"
        assert take_up(keeping, every[-1][0], how).status_code == 204


def test_a_connection_may_break_many_times(keeping):
    body = greedy("Once upon a time", 200, ignore_eos=True)
    whole = keeping.post(URL, body).json()["choices"][0]["text"]
    connection = open_request(keeping, {**body, "stream": True})
    every = read_until(connection, 5)
    while every[-1][1] != "[DONE]":
        connection.close()
        connection = open_request(keeping, {}, headers=[f"Last-Event-ID: {every[-1][0]}"])
        every += read_until(connection, 20)
    connection.close()
    assert text_of(data for _, data in every) == whole


@pytest.mark.parametrize("stream", [False, True])
def test_two_posts_with_one_key_run_one_job(keeping, stream):
    body = greedy("x", 1000, ignore_eos=True, stream=stream)
    seen, is_over = set(), threading.Event()

    def watch():
        while not is_over.is_set():
            seen.add(len(keeping.rows()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    headers = {"Idempotency-Key": f"key-{stream}"}
    answers = in_threads(lambda b: keeping.post(URL, b, headers=headers), [body] * 4)
    is_over.set()
    watcher.join()
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert max(seen) == 1


def test_a_repetition_after_a_killed_connection_gets_the_answer(server):
    """With the settings as they are by default."""
    body = greedy("x", 1000, ignore_eos=True)
    key = "Idempotency-Key: killed"
    connection = open_request(server, body, headers=[key, "Accept: */*"])
    [row] = server.wait_for(server.rows)
    connection.close()
    repeated = server.post(URL, body, headers={"Idempotency-Key": "killed"}).json()
    assert listed_name(repeated["id"]) == row["id"]
    assert repeated["usage"]["completion_tokens"] == 1000


def test_a_stream_that_nobody_takes_up_ends_with_the_server(start):
    server = start(resume_timeout=600, grace=1).wait_until_ready()
    connection = open_request(server, greedy("x", 1900, ignore_eos=True, stream=True, n=8))
    connection.recv(100)
    connection.close()
    begin = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - begin < 20
