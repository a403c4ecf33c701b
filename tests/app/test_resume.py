"""Streams that their client loses, and takes up again."""

import json
import socket
import time

import pytest

from switchyard.app.delivery import transcripts
from tests.app.conftest import Streamed, fails, wait_until_empty
from tests.app.refused import error_of
from tests.scripted import ScriptedBackend, count, ticking

pytestmark = pytest.mark.both_ways

URL = "/v1/completions"
ASKED = {"prompt": "x", "max_tokens": 6, "stream": True}
WHOLE = ["0 ", "1 ", "2 ", "3 ", "4 ", "5 ", ""]
LONG = {**ASKED, "max_tokens": 2000}
FOR_EVER = 3600
STARTED = 1  # iterations before the first token


@pytest.fixture
def open_stream(make_client, gate):
    """A client, and its stream of which that many tokens have been generated and read."""

    def open_stream(num_tokens, backend=None, body=ASKED, headers=None, **settings):
        backend = backend or ScriptedBackend(gate=gate)
        client = make_client(backend, **{"resume_timeout": FOR_EVER, "heartbeat": 0.1, **settings})
        gate.step(STARTED + num_tokens)
        streamed = Streamed(client.post(URL, json=body, headers=headers))
        return client, streamed.read(num_tokens)

    return open_stream


def take_up(client, streamed, how="GET", last_id=None):
    headers = {"Last-Event-ID": last_id or streamed.last_id}
    if how == "POST":
        return client.post(URL, json=ASKED, headers=headers)
    return client.get(f"/v1/streams/{streamed.identifier}", headers=headers)


def test_every_event_says_which_it_is(open_stream, gate):
    gate.open()
    _, streamed = open_stream(0)
    streamed.read()
    identifier = streamed.identifier
    assert streamed.events[0][1].startswith(f'{{"id":"{identifier}"')
    assert [i for i, _ in streamed.events] == [f"{identifier}:{n}" for n in range(1, 9)]
    assert streamed.events[-1][1] == "[DONE]"


@pytest.mark.parametrize(
    ("accept", "resume_timeout"),
    [("text/event-stream", 0), ("application/x-ndjson", FOR_EVER), ("text/plain", FOR_EVER)],
)
def test_events_have_no_id_where_no_stream_is_kept(make_client, accept, resume_timeout):
    client = make_client(resume_timeout=resume_timeout)
    response = client.post(URL, json=ASKED, headers={"Accept": accept})
    assert b"id: " not in response.data


@pytest.mark.parametrize("how", ["GET", "POST"])
@pytest.mark.parametrize("num_tokens", [1, 3, 6])
def test_a_lost_stream_goes_on_behind_the_last_event(open_stream, gate, drop, how, num_tokens):
    client, streamed = open_stream(num_tokens)
    drop(streamed)
    gate.open()
    rest = Streamed(take_up(client, streamed, how)).read()
    assert streamed.texts + rest.texts == WHOLE
    assert rest.events[-1][1] == "[DONE]"
    wait_until_empty(client)


@pytest.mark.one_way
def test_a_stream_that_is_taken_up_has_a_limit_of_sends_too(open_stream, gate, drop, connection):
    client, streamed = open_stream(1, send_timeout=7.5)
    drop(streamed)
    gate.open()
    path, headers = f"/v1/streams/{streamed.identifier}", {"Last-Event-ID": streamed.last_id}
    client.get(path, headers=headers, environ_overrides=connection.environ).close()
    option = connection.server.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert option == 7500


def test_the_jobs_go_on_meanwhile_and_only_once(open_stream, gate, drop):
    backend = ScriptedBackend(gate=gate)
    client, streamed = open_stream(2, backend)
    gone = drop(streamed)
    gate.open()
    wait_until_empty(client)
    gone.join(20)  # nobody waits for what has ended
    rest = Streamed(take_up(client, streamed)).read()
    assert streamed.texts + rest.texts == WHOLE
    assert len(backend.enqueued) == 1


def test_it_can_be_read_from_its_beginning_and_there_is_nothing_behind_its_end(open_stream, gate):
    gate.open()
    client, streamed = open_stream(6)
    identifier = streamed.read().identifier
    again = Streamed(client.get(f"/v1/streams/{identifier}"))
    assert again.read().events == streamed.events
    assert again.response.mimetype == "text/event-stream"
    for how in ("GET", "POST"):
        response = take_up(client, streamed, how)
        assert (response.status_code, response.data) == (204, b"")


def test_two_may_read_at_once(open_stream, gate):
    client, streamed = open_stream(2)
    other = Streamed(client.get(f"/v1/streams/{streamed.identifier}"))
    gate.open()
    assert streamed.read().texts == other.read().texts == WHOLE
    assert streamed.events == other.events


def test_who_stops_reading_holds_nobody_up(open_stream, gate):
    client, streamed = open_stream(2)  # which never reads on
    other = Streamed(take_up(client, streamed))
    gate.open()
    assert streamed.texts + other.read().texts == WHOLE


def test_the_thread_of_a_lost_stream_is_free_once_it_is_taken_up(open_stream, gate, drop):
    client, streamed = open_stream(1, body=LONG)
    gone = drop(streamed)
    rest = Streamed(take_up(client, streamed))
    gone.join(20)
    assert not gone.is_alive()
    assert client.models.get().num_jobs == 1
    gone = drop(rest)
    assert client.delete(f"/v1/requests/{streamed.identifier}").status_code == 200
    gate.open()
    gone.join(20)  # though nobody reads
    rest = Streamed(take_up(client, streamed)).read()
    assert '"finish_reason":"cancelled"' in rest.events[-2][1]


def test_without_a_reader_the_jobs_are_cancelled_in_time_and_not_before(make_client, drop):
    client = make_client(ScriptedBackend(ticking), resume_timeout=0.5)
    streamed = Streamed(client.post(URL, json=LONG)).read(1)
    begin = time.monotonic()
    drop(streamed)
    wait_until_empty(client)
    assert 0.5 <= time.monotonic() - begin < 10
    response = take_up(client, streamed)
    assert response.status_code == 404 and "0.5 seconds" in response.json["error"]["message"]


def test_what_has_ended_is_forgotten_in_time(make_client):
    client = make_client(resume_timeout=0.03)
    streamed = Streamed(client.post(URL, json=ASKED)).read()
    streamed.response.close()
    deadline = time.monotonic() + 20
    while (status := take_up(client, streamed).status_code) == 204:
        assert time.monotonic() < deadline
        time.sleep(0.04)  # each time that it is asked for, it is kept again
    assert status == 404


def test_deadlines_hold_while_nobody_reads(make_client, drop):
    client = make_client(ScriptedBackend(ticking), resume_timeout=FOR_EVER, total_timeout=1)
    streamed = Streamed(client.post(URL, json=LONG)).read(1)
    drop(streamed).join(20)
    wait_until_empty(client)
    rest = Streamed(take_up(client, streamed)).read()
    assert '"code":"total_timeout"' in rest.events[-2][1]
    assert rest.events[-1][1] == "[DONE]"


def test_what_failed_meanwhile_is_told(open_stream, gate, drop):
    client, streamed = open_stream(1, ScriptedBackend(fails("x"), gate))
    drop(streamed)
    gate.open()
    rest = Streamed(take_up(client, streamed)).read()
    assert '"code":"job_failed"' in rest.events[0][1] and rest.events[1][1] == "[DONE]"
    assert [i for i, _ in rest.events] == [f"{streamed.identifier}:{n}" for n in (2, 3)]


@pytest.mark.parametrize(
    ("last_id", "status"),
    [
        ("nonsense", 400),
        (":3", 400),
        ("{id}:x", 400),
        ("{id}:-1", 400),
        ("{id}:²", 400),
        ("{id}:99", 400),
        ("cmpl-0:1", 404),
    ],
)
def test_what_no_event_was_called_is_refused(open_stream, gate, last_id, status):
    gate.open()
    client, streamed = open_stream(6)
    identifier = streamed.identifier
    for how in ("GET", "POST"):
        response = take_up(client, streamed, how, last_id.replace("{id}", identifier))
        error = error_of(response, status)
        if status == 400:
            assert error["param"] == "Last-Event-ID" and "Last-Event-ID" in error["message"]
        elif how == "GET":
            assert "Last-Event-ID" in error["message"] and "another stream" in error["message"]


def test_a_body_above_the_limit_is_refused_beside_an_event_too(open_stream, gate):
    """Unread, it would stand before the next request of the connection."""
    gate.open()
    client, streamed = open_stream(6, max_body_bytes=1000)
    headers = {"Last-Event-ID": streamed.last_id}
    assert client.post(URL, data=b"x" * 1001, headers=headers).status_code == 413
    assert client.post(URL, data=b"x" * 1000, headers=headers).status_code == 200


def test_a_refused_event_leaves_no_reader_behind(open_stream, drop):
    """So that a stream which nobody reads any more is let go of in time."""
    client, streamed = open_stream(2, ScriptedBackend(ticking), LONG, resume_timeout=0.5)
    too_high = f"{streamed.identifier}:999"
    assert take_up(client, streamed, last_id=too_high).status_code == 400
    drop(streamed)
    wait_until_empty(client)


def test_a_server_that_keeps_no_streams_says_so(client):
    response = client.post(URL, json=ASKED, headers={"Last-Event-ID": "cmpl-0:1"})
    assert response.status_code == 404 and "0 seconds" in response.json["error"]["message"]


def test_of_too_many_the_oldest_that_have_ended_go(make_client, drop, monkeypatch):
    monkeypatch.setattr(transcripts, "MAX_COUNT", 2)
    backend = ScriptedBackend(lambda job: (count if job.max_new_tokens < 10 else ticking)(job))
    client = make_client(backend, resume_timeout=FOR_EVER)
    running = Streamed(client.post(URL, json=LONG)).read(1)
    drop(running)
    ended = [Streamed(client.post(URL, json=ASKED)) for _ in range(3)]
    for streamed in ended:
        streamed.read().response.close()
    assert [take_up(client, s).status_code for s in ended] == [404, 404, 204]
    rest = Streamed(take_up(client, running)).read(1)
    assert rest.texts == ["x"]
    client.delete(f"/v1/requests/{running.identifier}")
    rest.read().response.close()


def test_of_too_long_ones_the_oldest_that_have_ended_go(make_client, monkeypatch):
    monkeypatch.setattr(transcripts, "MAX_BYTES", 3000)  # two of them
    client = make_client(resume_timeout=FOR_EVER)
    ended = [Streamed(client.post(URL, json=ASKED)).read() for _ in range(4)]
    for streamed in ended:
        streamed.response.close()
    assert [take_up(client, ended[i]).status_code for i in (0, -1)] == [404, 204]


def test_a_stream_with_a_key_is_kept_for_the_longer_time(open_stream, gate, drop):
    more = {"headers": {"Idempotency-Key": "1"}, "idempotency_timeout": 0.01}
    client, streamed = open_stream(1, **more)
    drop(streamed).join(0.5)  # in which it would have been given up
    gate.open()
    rest = Streamed(take_up(client, streamed)).read()
    assert streamed.texts + rest.texts == WHOLE


@pytest.mark.one_way  # over a socket all is written before it is read
def test_what_is_still_read_makes_no_room(open_stream, gate, monkeypatch):
    monkeypatch.setattr(transcripts, "MAX_COUNT", 1)
    client, streamed = open_stream(1)  # which reads slowly
    gate.open()
    Streamed(take_up(client, streamed)).read().response.close()
    Streamed(client.post(URL, json=ASKED)).read().response.close()
    again = Streamed(take_up(client, streamed)).read()
    assert streamed.texts + again.texts == WHOLE


def test_readers_of_what_others_read_already_are_bounded(open_stream, gate):
    client, streamed = open_stream(1, reserve_threads=4)
    others = [Streamed(take_up(client, streamed)) for _ in range(2)]
    response = take_up(client, streamed)
    assert response.status_code == 429 and response.json["error"]["code"] == "queue_full"
    others[0].response.close()
    others[0] = Streamed(take_up(client, streamed))
    gate.open()
    for other in others:
        assert streamed.texts + other.read().texts == WHOLE


def test_what_nobody_reads_is_taken_up_whatever_the_bound(open_stream, gate):
    client, streamed = open_stream(1, body=LONG, reserve_threads=2)
    lost = Streamed(client.post(URL, json=ASKED))
    gate.step(STARTED + len(WHOLE) + 1)  # it waits behind an iteration that is under way
    lost.read().response.close()
    other = Streamed(take_up(client, streamed))
    assert take_up(client, streamed).status_code == 429
    rest = Streamed(take_up(client, lost, last_id=f"{lost.identifier}:2")).read()
    assert rest.texts == WHOLE[2:]
    gate.open()
    assert streamed.read().texts[1:] == other.read().texts


@pytest.mark.parametrize("num_events", [1, 2])
def test_an_event_source_goes_on_by_itself(make_client, gate, drop, num_events):
    """It asks for the same again by GET, with the id that the last event had."""
    client = make_client(ScriptedBackend(gate=gate), resume_timeout=FOR_EVER, heartbeat=0.1)
    gate.step(STARTED + num_events)
    url = "/generate?prompt=x&max_tokens=6&stream=true"
    streamed = Streamed(client.get(url)).read(num_events)
    drop(streamed)
    gate.open()
    rest = Streamed(client.get(url, headers={"Last-Event-ID": streamed.last_id})).read()
    texts = [json.loads(data).get("text") for _, data in [*streamed.events, *rest.events]]
    assert texts == [*WHOLE[:-1], None]
    assert client.get(url, headers={"Last-Event-ID": rest.last_id}).status_code == 204
