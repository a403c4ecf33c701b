"""Requests that come again with the same Idempotency-Key."""

import socket
import threading
import time
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.app.delivery import transcripts
from switchyard.app.delivery.watch import LOOK
from tests.app.conftest import Streamed, fails, listed, wait_until_empty
from tests.app.refused import error_of
from tests.conftest import wait_for
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
def hold(monkeypatch):
    """Keep requests in the state in which they have a key and no job yet."""

    def hold(client):
        model = client.models.get()
        held = SimpleNamespace(is_over=threading.Event(), arrived=threading.Semaphore(0), errors=[])

        def check(*args, check_room=model.check_room):
            held.arrived.release()
            assert held.is_over.wait(20)
            if held.errors:
                raise held.errors.pop()
            check_room(*args)

        monkeypatch.setattr(model, "check_room", check)
        return held

    return hold


@pytest.mark.parametrize("body", [ASKED, STREAMED])
def test_two_that_come_at_once_run_one_job(client, ask, hold, body):
    """The second comes while the first has no job yet."""
    held = hold(client)
    answers = [ask(client, body, headers=KEY)]
    assert held.arrived.acquire(timeout=20)
    answers += [ask(client, body, headers=KEY) for _ in range(2)]
    held.is_over.set()
    first, *others = (answer.get(timeout=20) for answer in answers)
    assert first.status_code == 200
    assert [other.data for other in others] == [first.data] * 2
    assert len(client.backend.enqueued) == 1 and not held.arrived.acquire(blocking=False)


@pytest.mark.parametrize("body", [LONG, {**LONG, "stream": True}])
def test_one_that_comes_while_the_job_runs_joins_it(make_client, ask, body):
    client = make_client(ScriptedBackend(ticking))
    answers = [ask(client, body, headers=KEY)]
    [row] = listed(client, 1)
    answers.append(ask(client, body, headers=KEY))
    wait_for_readers(client, 2)
    client.delete(f"/v1/requests/{row['id']}")
    first, second = (answer.get(timeout=20) for answer in answers)
    assert first.data == second.data
    assert len(client.backend.enqueued) == 1


def test_a_client_that_sends_no_more_waits_for_the_first_too(client, ask, hold, connection):
    held = hold(client)
    first = ask(client, STREAMED, headers=KEY)
    assert held.arrived.acquire(timeout=20)
    connection.client.shutdown(socket.SHUT_WR)
    second = ask(client, STREAMED, headers=KEY, environ_overrides=connection.environ)
    time.sleep(2 * LOOK)
    held.is_over.set()
    assert second.get(timeout=20).data.endswith(first.get(timeout=20).data)  # behind a heartbeat
    assert len(client.backend.enqueued) == 1


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
def test_another_request_with_the_key_is_refused(client, path, body, headers):
    key = {**KEY, "Authorization": "Bearer mine"}
    client.post(URL, json=ASKED, headers=key)
    error = error_of(client.post(path, json=body, headers={**key, **headers}), 422)
    assert "Idempotency-Key" in error["message"]
    assert len(client.backend.enqueued) == 1


def test_a_key_is_its_clients_own_and_its_endpoints(client):
    other = {**KEY, "Authorization": "Bearer other"}
    for headers, body in ((KEY, ASKED), (other, STREAMED)):
        assert client.post(URL, json=body, headers=headers).status_code == 200
        assert client.post(CHAT, json=MESSAGES, headers=headers).status_code == 200
    assert len(client.backend.enqueued) == 4


def test_what_was_refused_may_be_asked_again(client, ask, hold):
    """Also by one that has come meanwhile, and waits for what becomes of the first."""
    held = hold(client)
    held.errors.append(engine.Full("no room", 1.0))
    answers = [ask(client, ASKED, headers=KEY)]
    assert held.arrived.acquire(timeout=20)
    answers.append(ask(client, ASKED, headers=KEY))
    held.is_over.set()
    assert [answer.get(timeout=20).status_code for answer in answers] == [429, 200]
    assert len(client.backend.enqueued) == 1
    for body, status in (({"prompt": ""}, 400), (ASKED, 200)):
        response = client.post(URL, json=body, headers={"Idempotency-Key": "2"})
        assert response.status_code == status


@pytest.mark.parametrize("body", [ASKED, STREAMED])
def test_what_failed_may_be_asked_again_and_runs_again(make_client, body):
    scripts = iter([fails(), fails("x"), count])
    client = make_client(ScriptedBackend(lambda job: next(scripts)(job)))
    assert client.post(URL, json=body, headers=KEY).status_code == 500
    failed = client.post(URL, json=body, headers=KEY)
    assert '"code":"job_failed"' in failed.text
    answers = [client.post(URL, json=body, headers=KEY) for _ in range(2)]
    assert answers[0].status_code == 200 and answers[0].data == answers[1].data
    assert len(client.backend.enqueued) == 3


def test_a_failure_that_is_dropped_leaves_the_key_to_the_next_request(make_client, monkeypatch):
    monkeypatch.setattr(transcripts, "MAX_COUNT", 1)
    scripts = iter([fails("x"), count])
    client = make_client(ScriptedBackend(lambda job: next(scripts)(job)))
    answers = []
    for _ in range(3):
        with client.post(URL, json=STREAMED, headers=KEY) as answer:
            answers.append((answer.status_code, answer.data))
        wait_for_readers(client, 0)  # a reader may leave after its client has the answer
    _, first, second = answers
    assert first[0] == 200 and first == second
    assert len(client.backend.enqueued) == 2


def test_all_that_wait_for_a_job_are_told_its_failure(make_client, ask, gate):
    client = make_client(ScriptedBackend(fails(), gate))
    answers = [ask(client, ASKED, headers=KEY) for _ in range(2)]
    wait_for_readers(client, 2)
    gate.open()
    assert [answer.get(timeout=20).status_code for answer in answers] == [500, 500]
    assert len(client.backend.enqueued) == 1


def kept_by(client):
    return client.application.extensions["switchyard"].answers.transcripts


def wait_for_readers(client, count):
    kept = kept_by(client)._kept
    wait_for(lambda: sum(o.transcript.num_readers for o in list(kept.values())) == count)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_job_goes_on_without_its_client_and_is_joined_by_the_repetition(
    make_client, connection, ask, gate, how
):
    client = make_client(ScriptedBackend(gate=gate))
    lost = ask(client, ASKED, headers=KEY, environ_overrides=connection.environ)
    wait_for_readers(client, 1)
    connection.reset() if how == "reset" else connection.client.close()
    wait_for_readers(client, 0)
    repeated = ask(client, ASKED, headers=KEY)
    wait_for_readers(client, 1)
    assert lost.get(timeout=20).status_code == 499  # its thread is free
    gate.open()
    assert repeated.get(timeout=20).json["choices"][0]["text"] == "0 1 2 3 "
    assert len(client.backend.enqueued) == 1


def test_who_waits_with_a_client_that_leaves_gets_the_answer(make_client, connection, ask, gate):
    client = make_client(ScriptedBackend(gate=gate))
    lost = ask(client, ASKED, headers=KEY, environ_overrides=connection.environ)
    wait_for_readers(client, 1)
    other = ask(client, ASKED, headers=KEY)
    wait_for_readers(client, 2)
    connection.client.close()
    assert lost.get(timeout=20).status_code == 499
    gate.open()
    assert other.get(timeout=20).json["choices"][0]["text"] == "0 1 2 3 "
    assert len(client.backend.enqueued) == 1


def test_a_lost_stream_is_joined_by_the_repetition_from_its_beginning(make_client, gate, drop):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=0.1)
    gate.step(3)
    drop(Streamed(client.post(URL, json=STREAMED, headers=KEY)).read(2))
    repeated = Streamed(client.post(URL, json=STREAMED, headers=KEY))
    gate.open()
    assert repeated.read().texts == ["0 ", "1 ", "2 ", "3 ", ""]
    assert len(client.backend.enqueued) == 1


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_job_without_a_client_ends_in_time_and_the_repetition_runs_anew(
    make_client, connection, ask, is_streamed
):
    client = make_client(ScriptedBackend(ticking), idempotency_timeout=0.5)
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
    assert len(client.backend.enqueued) == 2


def test_an_answer_is_kept_for_a_time_only_and_nothing_is_left_of_it(make_client):
    client = make_client(idempotency_timeout=0.1)
    kept = kept_by(client)
    client.post(URL, json={"prompt": ""}, headers=KEY)
    assert not kept._claims
    client.post(URL, json=ASKED, headers=KEY)
    assert kept._claims and kept._kept
    time.sleep(0.15)
    assert kept.find("anything", "anybody") is None
    assert not kept._claims and not kept._kept
    client.post(URL, json=ASKED, headers=KEY)
    assert len(client.backend.enqueued) == 2


def test_a_key_that_cannot_be_honoured_is_refused(make_client):
    client = make_client(idempotency_timeout=0)
    error = error_of(client.post(URL, json=ASKED, headers=KEY))
    assert (error["param"], error["code"]) == ("Idempotency-Key", "unsupported_parameter")
    assert not client.backend.enqueued


def test_a_stream_with_a_key_may_be_taken_up_by_its_events_too(make_client):
    client = make_client(resume_timeout=3600)

    def events(**more):
        return Streamed(client.post(URL, json=STREAMED, headers=KEY | more)).read().events

    first = events()
    assert first == events()
    assert events(**{"Last-Event-ID": first[1][0]}) == first[2:]


def test_an_answer_without_events_is_no_stream(client):
    identifier = client.post(URL, json=ASKED, headers=KEY).json["id"]
    assert client.get(f"/v1/streams/{identifier}").status_code == 404


def test_repetitions_leave_the_threads_that_jobs_need(make_client, ask, gate):
    client = make_client(
        ScriptedBackend(gate=gate), max_batch_size=1, max_pending=2, reserve_threads=2
    )
    answers = [ask(client, ASKED, headers=KEY)]
    for num_readers in (1, 2, 3):
        wait_for_readers(client, num_readers)
        answers.append(ask(client, ASKED, headers=KEY))
    *answers, refused = answers
    assert refused.get(timeout=20).status_code == 429
    gate.open()
    assert [answer.get(timeout=20).status_code for answer in answers] == [200] * 3
