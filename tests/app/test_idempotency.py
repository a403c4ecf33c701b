"""Requests that come again with the same Idempotency-Key."""

import socket
import threading
import time

import pytest

from switchyard import engine
from switchyard.app.delivery import transcripts
from switchyard.app.delivery.watch import LOOK
from switchyard.engine.messages import Chunk, Failed, Started
from tests.app.conftest import Streamed, listed, wait_until_empty
from tests.scripted import ScriptedBackend, count, ticking

pytestmark = pytest.mark.both_ways

URL = "/v1/completions"
CHAT = "/v1/chat/completions"
KEY = {"Idempotency-Key": "k-1"}
ASKED = {"prompt": "x", "max_tokens": 4}
STREAMED = {**ASKED, "stream": True}
LONG = {"prompt": "x", "max_tokens": 2000}
MESSAGES = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}


@pytest.fixture
def backend(gate):
    return ScriptedBackend(gate=gate)


@pytest.fixture
def hold(monkeypatch):
    """Keep requests in the state in which they have a key and no job yet."""

    class Hold:
        def __init__(self, client):
            self.is_over = threading.Event()
            self.arrived = threading.Semaphore(0)
            self.error = None
            model = client.models.get()
            self._check_room = model.check_room
            monkeypatch.setattr(model, "check_room", self.check_room)

        def check_room(self, *args):
            self.arrived.release()
            assert self.is_over.wait(20)
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            self._check_room(*args)

    return Hold


@pytest.mark.parametrize("accept", ["application/x-ndjson", "text/plain"])
def test_every_framing_can_be_repeated(make_client, accept):
    client = make_client(ScriptedBackend())
    headers = {**KEY, "Accept": accept}
    first, second = (client.post(URL, json=STREAMED, headers=headers) for _ in range(2))
    assert first.data == second.data and first.mimetype == second.mimetype == accept


@pytest.mark.parametrize("body", [ASKED, STREAMED])
def test_two_that_come_at_once_run_one_job(make_client, ask, hold, body):
    """The second comes while the first has no job yet."""
    backend = ScriptedBackend()
    client = make_client(backend)
    held = hold(client)
    answers = [ask(client, body, headers=KEY)]
    assert held.arrived.acquire(timeout=20)
    answers += [ask(client, body, headers=KEY) for _ in range(2)]
    held.is_over.set()
    first, *others = (answer.get(timeout=20) for answer in answers)
    assert first.status_code == 200
    assert [other.data for other in others] == [first.data] * 2
    assert len(backend.enqueued) == 1 and not held.arrived.acquire(blocking=False)


@pytest.mark.parametrize("body", [LONG, {**LONG, "stream": True}])
def test_one_that_comes_while_the_job_runs_joins_it(make_client, ask, body):
    backend = ScriptedBackend(ticking)
    client = make_client(backend)
    answers = [ask(client, body, headers=KEY)]
    [row] = listed(client, 1)
    answers.append(ask(client, body, headers=KEY))
    [kept] = client.application.extensions["switchyard"].answers.transcripts._kept.values()
    while kept.transcript.num_readers < 2:
        time.sleep(0.01)
    client.delete(f"/v1/requests/{row['id']}")
    first, second = (answer.get(timeout=20) for answer in answers)
    assert first.data == second.data
    assert len(backend.enqueued) == 1


def test_a_client_that_sends_no_more_waits_for_the_first_too(make_client, ask, hold, connection):
    backend = ScriptedBackend()
    client = make_client(backend)
    held = hold(client)
    first = ask(client, STREAMED, headers=KEY)
    assert held.arrived.acquire(timeout=20)
    connection.client.shutdown(socket.SHUT_WR)
    second = ask(client, STREAMED, headers=KEY, environ_overrides=connection.environ)
    time.sleep(2 * LOOK)
    held.is_over.set()
    assert second.get(timeout=20).data.endswith(first.get(timeout=20).data)  # behind a heartbeat
    assert len(backend.enqueued) == 1


@pytest.mark.parametrize(
    ("path", "body", "headers"),
    [
        (URL, {**ASKED, "prompt": "y"}, {}),
        (URL, STREAMED, {}),
        (f"{URL}?x=1", ASKED, {}),
        (URL, ASKED, {"Accept": "text/plain"}),
        (URL, ASKED, {"Content-Type": "application/json; charset=utf-8"}),
    ],
)
def test_another_request_with_the_key_is_refused(make_client, path, body, headers):
    backend = ScriptedBackend()
    client = make_client(backend)
    key = {**KEY, "Authorization": "Bearer mine"}
    client.post(URL, json=ASKED, headers=key)
    response = client.post(path, json=body, headers={**key, **headers})
    assert response.status_code == 422
    assert "Idempotency-Key" in response.json["error"]["message"]
    assert len(backend.enqueued) == 1


def test_a_key_is_its_clients_own_and_its_endpoints(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    assert client.post(URL, json=ASKED, headers=KEY).status_code == 200
    assert client.post(CHAT, json=MESSAGES, headers=KEY).status_code == 200
    headers = {**KEY, "Authorization": "Bearer other"}
    assert client.post(URL, json=STREAMED, headers=headers).status_code == 200
    assert client.post(CHAT, json=MESSAGES, headers=headers).status_code == 200
    assert len(backend.enqueued) == 4


def test_what_was_refused_may_be_asked_again(make_client, ask, hold):
    """Also by one that has come meanwhile, and waits for what becomes of the first."""
    backend = ScriptedBackend()
    client = make_client(backend)
    held = hold(client)
    held.error = engine.Full("no room", 1.0)
    answers = [ask(client, ASKED, headers=KEY)]
    assert held.arrived.acquire(timeout=20)
    answers.append(ask(client, ASKED, headers=KEY))
    held.is_over.set()
    assert [answer.get(timeout=20).status_code for answer in answers] == [429, 200]
    assert len(backend.enqueued) == 1
    assert (
        client.post(URL, json={"prompt": ""}, headers={"Idempotency-Key": "2"}).status_code == 400
    )
    assert client.post(URL, json=ASKED, headers={"Idempotency-Key": "2"}).status_code == 200


@pytest.mark.parametrize("body", [ASKED, STREAMED])
def test_what_failed_may_be_asked_again_and_runs_again(make_client, body):
    scripts = iter([fail_at_once, fail_later, count])
    backend = ScriptedBackend(lambda job: next(scripts)(job))
    client = make_client(backend)
    assert client.post(URL, json=body, headers=KEY).status_code == 500
    failed = client.post(URL, json=body, headers=KEY)
    assert '"code":"job_failed"' in failed.text
    answers = [client.post(URL, json=body, headers=KEY) for _ in range(2)]
    assert answers[0].status_code == 200 and answers[0].data == answers[1].data
    assert len(backend.enqueued) == 3


def test_a_failure_that_is_dropped_leaves_the_key_to_the_next_request(make_client, monkeypatch):
    monkeypatch.setattr(transcripts, "MAX_COUNT", 1)
    scripts = iter([fail_later, count])
    backend = ScriptedBackend(lambda job: next(scripts)(job))
    client = make_client(backend)
    kept = client.application.extensions["switchyard"].answers.transcripts
    answers = []
    for _ in range(3):
        with client.post(URL, json=STREAMED, headers=KEY) as answer:
            answers.append((answer.status_code, answer.data))
        wait_for_readers(kept, 0)  # a reader may leave after its client has the answer
    _, first, second = answers
    assert first[0] == 200 and first == second
    assert len(backend.enqueued) == 2


def fail_at_once(job):
    yield Failed(job.identifier, engine.JobFailed("no luck"))


def fail_later(job):
    yield Started(job.identifier)
    yield Chunk(job.identifier, "x", (1,))
    yield Failed(job.identifier, engine.JobFailed("no luck"))


def test_all_that_wait_for_a_job_are_told_its_failure(make_client, ask, gate):
    backend = ScriptedBackend(fail_at_once, gate)
    client = make_client(backend)
    answers = [ask(client, ASKED, headers=KEY) for _ in range(2)]
    transcripts = client.application.extensions["switchyard"].answers.transcripts
    wait_for_readers(transcripts, 2)
    gate.open()
    assert [answer.get(timeout=20).status_code for answer in answers] == [500, 500]
    assert len(backend.enqueued) == 1


def wait_for_readers(transcripts, count):
    deadline = time.monotonic() + 20
    while sum(kept.transcript.num_readers for kept in list(transcripts._kept.values())) != count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_job_goes_on_without_its_client_and_is_joined_by_the_repetition(
    make_client, backend, connection, ask, gate, how
):
    client = make_client(backend)
    transcripts = client.application.extensions["switchyard"].answers.transcripts
    lost = ask(client, ASKED, headers=KEY, environ_overrides=connection.environ)
    wait_for_readers(transcripts, 1)
    if how == "close":
        connection.client.close()
    else:
        connection.reset()
    wait_for_readers(transcripts, 0)
    repeated = ask(client, ASKED, headers=KEY)
    wait_for_readers(transcripts, 1)
    assert lost.get(timeout=20).status_code == 499  # its thread is free
    gate.open()
    assert repeated.get(timeout=20).json["choices"][0]["text"] == "0 1 2 3 "
    assert len(backend.enqueued) == 1


def test_who_waits_with_a_client_that_leaves_gets_the_answer(
    make_client, backend, connection, ask, gate
):
    client = make_client(backend)
    transcripts = client.application.extensions["switchyard"].answers.transcripts
    lost = ask(client, ASKED, headers=KEY, environ_overrides=connection.environ)
    wait_for_readers(transcripts, 1)
    other = ask(client, ASKED, headers=KEY)
    wait_for_readers(transcripts, 2)
    connection.client.close()
    assert lost.get(timeout=20).status_code == 499
    gate.open()
    assert other.get(timeout=20).json["choices"][0]["text"] == "0 1 2 3 "
    assert len(backend.enqueued) == 1


def test_a_lost_stream_is_joined_by_the_repetition_from_its_beginning(make_client, gate, drop):
    backend = ScriptedBackend(gate=gate)
    client = make_client(backend, heartbeat=0.1)
    gate.step(3)
    lost = Streamed(client.post(URL, json=STREAMED, headers=KEY)).read(2)
    drop(lost)
    repeated = Streamed(client.post(URL, json=STREAMED, headers=KEY))
    gate.open()
    assert repeated.read().texts == ["0 ", "1 ", "2 ", "3 ", ""]
    assert len(backend.enqueued) == 1


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_job_without_a_client_ends_in_time_and_the_repetition_runs_anew(
    make_client, connection, ask, is_streamed
):
    backend = ScriptedBackend(ticking)
    client = make_client(backend, idempotency_timeout=0.5)
    body = {**LONG, "stream": is_streamed}
    if is_streamed:
        lost = Streamed(client.post(URL, json=body, headers=KEY)).read(1)
        begin = time.monotonic()
        lost.response.close()
    else:
        lost = ask(client, body, headers=KEY, environ_overrides=connection.environ)
        listed(client, 1)
        begin = time.monotonic()
        connection.client.close()
        assert lost.get(timeout=20).status_code == 499
    wait_until_empty(client)
    assert 0.5 <= time.monotonic() - begin < 10
    again = ask(client, body, headers=KEY)
    [row] = listed(client, 1)
    client.delete(f"/v1/requests/{row['id']}")
    again.get(timeout=20)
    assert len(backend.enqueued) == 2


def test_an_answer_is_kept_for_a_time_only(make_client):
    backend = ScriptedBackend()
    client = make_client(backend, idempotency_timeout=0.03)
    client.post(URL, json=ASKED, headers=KEY)
    time.sleep(0.04)
    client.post(URL, json=ASKED, headers=KEY)
    assert len(backend.enqueued) == 2


@pytest.mark.parametrize(
    ("key", "settings", "code"),
    [
        ("", {}, "invalid_value"),
        ("x" * 256, {}, "invalid_value"),
        ("k", {"idempotency_timeout": 0}, "unsupported_parameter"),
    ],
)
def test_a_key_that_cannot_be_honoured_is_refused(make_client, key, settings, code):
    backend = ScriptedBackend()
    client = make_client(backend, **settings)
    response = client.post(URL, json=ASKED, headers={"Idempotency-Key": key})
    assert response.status_code == 400
    error = response.json["error"]
    assert (error["param"], error["code"]) == ("Idempotency-Key", code)
    assert not backend.enqueued


def test_a_key_may_have_255_characters(make_client):
    backend = ScriptedBackend()
    client = make_client(backend)
    for _ in range(2):
        response = client.post(URL, json=ASKED, headers={"Idempotency-Key": "x" * 255})
        assert response.status_code == 200
    assert len(backend.enqueued) == 1


def test_a_stream_with_a_key_may_be_taken_up_by_its_events_too(make_client):
    client = make_client(ScriptedBackend(), resume_timeout=3600)
    first = Streamed(client.post(URL, json=STREAMED, headers=KEY)).read()
    second = Streamed(client.post(URL, json=STREAMED, headers=KEY)).read()
    assert first.events == second.events
    headers = {**KEY, "Last-Event-ID": first.events[1][0]}
    rest = Streamed(client.post(URL, json=STREAMED, headers=headers)).read()
    assert rest.events == first.events[2:]


def test_an_answer_without_events_is_no_stream(make_client):
    client = make_client(ScriptedBackend())
    identifier = client.post(URL, json=ASKED, headers=KEY).json["id"]
    assert client.get(f"/v1/streams/{identifier}").status_code == 404


def test_nothing_is_left_of_what_is_over(make_client):
    client = make_client(ScriptedBackend(), idempotency_timeout=0.1)
    kept = client.application.extensions["switchyard"].answers.transcripts
    client.post(URL, json={"prompt": ""}, headers=KEY)
    assert not kept._claims
    client.post(URL, json=ASKED, headers=KEY)
    assert kept._claims and kept._kept
    time.sleep(0.15)
    assert kept.find("anything", "anybody") is None
    assert not kept._claims and not kept._kept
