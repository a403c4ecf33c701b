"""Large inputs before admission: a few at a time, and small ones beside them."""

import json
import sys
import time
from concurrent import futures
from types import SimpleNamespace

import flask
import pytest

from switchyard import engine
from switchyard.app import BadRequest, ClientGone, Switchyard
from switchyard.app.delivery import submit
from switchyard.app.delivery.reader import deadlines, next_of
from switchyard.app.formats.websocket.session import Session
from switchyard.app.http import gate as gate_module
from switchyard.app.http.gate import LARGE, MAX_BYTES, SWITCH_INTERVAL, Gate
from switchyard.app.openapi.contract import declared
from switchyard.app.services import KEY
from tests.app.refused import error_of
from tests.conftest import wait_for
from tests.scripted import ScriptedBackend, endless

URL = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]
LONG = {"prompt": "x" * LARGE, "max_tokens": 1}  # longer than the context, but that is told later
IDLE = {"prompt": [1], "max_tokens": 1, "user": "x" * LARGE}


def patience(check=lambda: None):
    """A check, which finds after a while that who waits would wait forever."""
    deadline = time.monotonic() + 10

    def look():
        assert time.monotonic() < deadline, "waits for ever"
        check()

    return look


def enter(gate, size, check=lambda: None):
    return gate.enter(size, patience(check))


def follow(gate, size):
    """Enter in a thread of its own, once it waits."""
    number = gate.num_waiting + 1
    join = in_thread(enter, gate, size)
    wait_for(lambda: gate.num_waiting == number)
    return join


def make_gate(max_waiting=10, max_busy=1000, num_busy=0):
    return Gate(max_waiting, max_busy, lambda: num_busy)


@pytest.fixture
def clock(monkeypatch):
    """The gate's: `now`, and the alarms that it sets, (seconds, call)."""
    clock = SimpleNamespace(now=100.0, monotonic=lambda: clock.now, alarms=[])
    clock.set = lambda seconds, call: clock.alarms.append((seconds, call))
    monkeypatch.setattr(gate_module, "time", clock)
    monkeypatch.setattr(engine, "ALARMS", clock)
    return clock


def gate_of(client):
    """An application's, at which a request of a test waits no longer than the test."""
    gate = client.application.extensions[KEY].gate
    if "enter" not in vars(gate):
        enter = gate.enter
        gate.enter = lambda size, check: enter(size, patience(check))
    return gate


def in_thread(call, *args):
    """What it returns, or raises, once `join` is called."""
    pool = futures.ThreadPoolExecutor(1)
    done = pool.submit(call, *args)
    pool.shutdown(wait=False)
    return lambda: done.exception(20) or done.result()


def test_two_are_inside_and_the_others_follow_in_order():
    gate = make_gate()
    inside = [enter(gate, LARGE) for _ in range(2)]
    followers = [follow(gate, LARGE) for _ in range(3)]
    assert (gate.num_inside, gate.num_waiting) == (2, 3)
    for i, follower in enumerate(followers):
        inside[-1 if i else 0].leave()
        inside.append(follower())
        assert (gate.num_inside, gate.num_waiting) == (2, 2 - i)
    for place in (inside[1], inside[-1]):
        place.leave()
    assert gate.num_inside == 0


def test_bytes_count_and_what_is_larger_than_all_together_is_inside_alone():
    gate = make_gate()
    with enter(gate, MAX_BYTES - LARGE):
        with enter(gate, LARGE):
            assert gate.num_inside == 2
        join = follow(gate, LARGE + 1)
    with join():
        huge = follow(gate, 10 * MAX_BYTES)
    with huge():
        assert gate.num_inside == 1
        join = follow(gate, LARGE)
    join().leave()


def test_threads_give_the_gil_up_more_often_while_one_is_inside_of_any_gate():
    usual = sys.getswitchinterval()
    first, second = make_gate(), make_gate()
    places = [enter(gate, LARGE) for gate in (first, second)]
    follower = follow(first, MAX_BYTES)
    for place in places:
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
        place.leave()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
    follower().leave()
    assert sys.getswitchinterval() == usual > SWITCH_INTERVAL


@pytest.mark.parametrize("num_busy", [0, 1])
def test_while_jobs_are_served_the_next_waits_as_long_as_the_last_was_inside(clock, num_busy):
    gate = make_gate(num_busy=num_busy)
    with enter(gate, MAX_BYTES):
        followers = [follow(gate, MAX_BYTES) for _ in range(2)]
        clock.now += 3
    assert gate.num_inside == 1 - num_busy
    ends = [end for seconds, end in clock.alarms if seconds == 3.0]
    assert len(ends) == num_busy
    for end in ends:
        clock.now += 3
        end()
    assert (gate.num_inside, gate.num_waiting) == (1, 1)
    for place in (gate._inside[0], gate._waiting[0]):
        place.leave()
    [follower() for follower in followers]


def test_a_small_input_takes_no_lock():
    gate = make_gate()
    with gate._lock:
        in_thread(enter, gate, LARGE - 1)().leave()


def test_what_gives_up_makes_room_behind_it():
    gate = make_gate()
    held = enter(gate, MAX_BYTES // 2)

    def give_up():
        if gate.num_waiting == 2:
            raise ClientGone

    huge = in_thread(enter, gate, 2 * MAX_BYTES, give_up)
    wait_for(lambda: gate.num_waiting == 1)
    behind = in_thread(enter, gate, LARGE)
    with behind():
        assert isinstance(huge(), ClientGone)
        assert (gate.num_inside, gate.num_waiting) == (2, 0)
    held.leave()
    held.leave()
    assert gate.num_inside == 0


def test_memory_goes_back_once_when_nothing_has_been_inside_for_a_while(clock, monkeypatch):
    given = []
    monkeypatch.setattr(engine, "give_memory_back", lambda: given.append(True))
    gate = make_gate()
    with enter(gate, LARGE):
        with enter(gate, LARGE):
            pass
        assert clock.alarms == []
    with enter(gate, LARGE):
        [(_, call)] = clock.alarms
        clock.alarms.clear()
        call()
        assert given == []
    with enter(gate, LARGE):
        pass
    [(_, call)] = clock.alarms
    call()
    assert given == [True]


def test_every_route_that_takes_a_body_lets_it_pass_the_gate_and_leaves_it(make_client):
    client = make_client(max_pending=0)
    gate = gate_of(client)
    doors = [
        rule.rule
        for rule, contract in declared(client.application)
        if contract.body is not None and "POST" in rule.methods
    ]
    assert len(doors) >= 14
    for path in doors:
        with enter(gate, MAX_BYTES):
            response = client.post(path, json={"unknown": "x" * LARGE})
            assert response.status_code == 429, path
            assert int(response.headers["Retry-After"]) >= 1
            assert client.post(path, json={"unknown": "x"}).status_code in (200, 400)
        assert client.post(path, json={"unknown": "x" * LARGE}).status_code in (200, 400)
        assert gate.num_inside == 0, path


SCHEMA = {"type": "object", "properties": {f"name{i}": {"type": "string"} for i in range(100)}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (URL, {"prompt": "x", "json_schema": SCHEMA}),
        (CHAT, {"messages": MESSAGES, "tools": [TOOL]}),
        (CHAT, {"messages": MESSAGES, "tools": [TOOL], "tool_choice": "required"}),
    ],
)
def test_a_small_body_waits_too_if_its_schema_is_much_work(make_client, path, body):
    client = make_client(max_pending=0)
    assert len(json.dumps(body)) < LARGE
    with enter(gate_of(client), MAX_BYTES):
        assert client.post(path, json=body).status_code == 429
    assert client.post(path, json=body).status_code == 200
    assert gate_of(client).num_inside == 0


@pytest.mark.parametrize("way", ["iterator", "gunicorn"], indirect=True)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_waited_for_outside(make_client, gate, stream):
    client = make_client(ScriptedBackend(gate=gate))
    join = in_thread(lambda: client.post(URL, json={**IDLE, "stream": stream}).get_data())
    wait_for(lambda: client.backend.enqueued)
    wait_for(lambda: gate_of(client).num_inside == 0)
    gate.open()
    assert b"0 " in join()


def test_where_jobs_have_all_threads_that_they_may_no_large_request_waits(make_client):
    settings = {"max_batch_size": 1, "max_pending": 1, "heartbeat": 0.05}
    client = make_client(ScriptedBackend(endless), **settings)
    body = {"prompt": [1], "max_tokens": 100, "stream": True}
    streams = [client.post(URL, json=body) for _ in range(2)]
    with enter(gate_of(client), MAX_BYTES):
        message = error_of(client.post(URL, json=LONG), 429)["message"]
    assert "the queue is full: 0 large requests are already waiting" in message
    for stream in streams:
        stream.close()


def test_a_request_that_fails_in_an_unexpected_way_leaves_too(client, caplog):
    client.models.lease = lambda *_: 1 / 0
    assert client.post(URL, json=IDLE).status_code == 500
    assert gate_of(client).num_inside == 0


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_while_it_waits_gives_its_place_up(client, connection, how):
    gate = gate_of(client)
    with enter(gate, MAX_BYTES):
        join = in_thread(lambda: client.post(URL, json=LONG, environ_overrides=connection.environ))
        wait_for(lambda: gate.num_waiting == 1)
        connection.reset() if how == "reset" else connection.client.close()
        assert join().status_code == 499
        assert gate.num_waiting == 0


@pytest.mark.parametrize("setting", ["queue_timeout", "first_token_timeout", "total_timeout"])
def test_deadlines_hold_while_a_request_waits(make_client, setting):
    client = make_client(**{setting: 0.1})
    with enter(gate_of(client), MAX_BYTES):
        response = client.post(URL, json=LONG)
    assert response.status_code == 408 and response.json["error"]["code"] == setting
    assert gate_of(client).num_waiting == 0


def test_the_time_before_the_gate_counts_for_a_request_s_own_deadline(client, monkeypatch):
    starts = []

    def noted(queue, first_token, total, since=None):
        starts.append(since)
        return deadlines(queue, first_token, total, since)

    monkeypatch.setattr(submit, "deadlines", noted)
    before = time.monotonic()
    with enter(gate_of(client), MAX_BYTES):
        join = in_thread(lambda: client.post(URL, json=IDLE))
        wait_for(lambda: gate_of(client).num_waiting == 1)
        let_in = time.monotonic()
    assert join().status_code == 200
    assert before < starts[-1] < let_in
    assert next_of(deadlines(0, 0, 5, since=100.0)) == 105


class Script:
    """In a connection's place: messages that come, and those that go out."""

    def __init__(self, **message):
        self.incoming = [{"type": "generate", "id": 1, "prompt": "x", **message}]
        self.sent = []
        self.send = self.sent.append
        self.wake = self.keep_alive = lambda: None
        self.close = lambda code, reason: None

    def wait(self, timeout):
        if not self.incoming and self.sent:
            raise ClientGone

    def messages(self):
        while self.incoming:
            yield json.dumps(self.incoming.pop(0))

    def first(self):
        """What a session answers."""
        Session(self, 60).run()
        return self.sent[0]


def test_the_messages_of_a_websocket_pass_too(make_client):
    client = make_client(ScriptedBackend(endless), max_pending=0)
    gate = gate_of(client)
    with client.application.test_request_context():
        with enter(gate, MAX_BYTES):
            assert Script(prompt="x" * LARGE).first()["status"] == 429
        assert Script(user="x" * LARGE).first()["type"] == "chunk"
        assert gate.num_inside == 0


def test_a_message_of_very_many_values_is_refused(make_client):
    with make_client().application.test_request_context():
        told = Script(prompt=[5] * 110_000).first()
    assert told["status"] == 400
    assert "104857 values" in told["error"]["message"]


def test_what_a_host_generates_passes_too(model_path, open_models):
    open_models()
    host = flask.Flask("host")
    with Switchyard(host, model=model_path, max_pending=0) as switchyard, host.app_context():
        gate = gate_of(host.test_client())
        with enter(gate, MAX_BYTES):
            for asked in (
                {"prompt": "x" * LARGE},
                {"messages": [{"role": "user", "content": "x" * LARGE}]},
                IDLE | {"prompt": "x"},
            ):
                with pytest.raises(engine.Full):
                    switchyard.generate(**asked)
            assert switchyard.generate("x", max_tokens=1).text == "0 "
        assert switchyard.generate("x", max_tokens=1, user="x" * LARGE).text == "0 "
        with pytest.raises(BadRequest):
            switchyard.generate("x", unknown="x" * LARGE)
        assert gate.num_inside == 0
