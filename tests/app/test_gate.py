"""Large inputs before admission: a few at a time, and small ones beside them."""

import json
import sys
import threading
import time
from types import SimpleNamespace

import flask
import pytest

from switchyard import engine
from switchyard.app import BadRequest, ClientGone, Switchyard
from switchyard.app.delivery import submit
from switchyard.app.delivery.reader import deadlines, next_of
from switchyard.app.formats.websocket.session import Session
from switchyard.app.host.tables import TABLES
from switchyard.app.http import gate as gate_module
from switchyard.app.http.gate import LARGE, MAX_BYTES, SWITCH_INTERVAL, Gate
from switchyard.app.openapi.contract import declared
from switchyard.app.services import KEY
from switchyard.engine.links.thread import EngineThread
from tests.scripted import ScriptedBackend, endless

URL = "/v1/completions"
CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]
LONG = {"prompt": "x" * LARGE, "max_tokens": 1}  # longer than the context, but that is told later


def patience(check=lambda: None):
    """A check, which finds after a while that who waits would wait forever."""
    deadline = time.monotonic() + 10

    def look():
        assert time.monotonic() < deadline, "waits for ever"
        check()

    return look


def enter(gate, size, check=lambda: None):
    return gate.enter(size, patience(check))


def make_gate(max_waiting=10, max_busy=1000, num_busy=0):
    return Gate(max_waiting, max_busy, lambda: num_busy)


def gate_of(client):
    """An application's, at which a request of a test waits no longer than the test."""
    gate = client.application.extensions[KEY].gate
    if "enter" not in vars(gate):
        enter = gate.enter
        gate.enter = lambda size, check: enter(size, patience(check))
    return gate


def in_thread(call, *args):
    """What it returns, or raises, once `join` is called."""
    results = []

    def run():
        try:
            results.append(call(*args))
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join():
        thread.join(20)
        return results[0]

    return join


def wait_until(condition):
    deadline = time.monotonic() + 10  # before the backend is let go anyway
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_two_are_inside_and_the_others_follow_in_order():
    gate = make_gate()
    inside = [enter(gate, LARGE) for _ in range(2)]
    entered = []
    followers = []
    for i in range(3):
        followers.append(in_thread(lambda i=i: entered.append((i, enter(gate, LARGE)))))
        wait_until(lambda i=i: gate.num_waiting == i + 1)
    assert entered == []
    for i in range(3):
        (inside[0] if i == 0 else entered[i - 1][1]).leave()
        followers[i]()
        assert [number for number, _ in entered] == list(range(i + 1))
        assert gate.num_inside == 2
    for place in (inside[1], entered[-1][1]):
        place.leave()
    assert (gate.num_inside, gate.num_waiting) == (0, 0)


def test_bytes_count_and_what_is_larger_than_all_together_is_inside_alone():
    gate = make_gate()
    with enter(gate, MAX_BYTES - LARGE):
        with enter(gate, LARGE):
            assert gate.num_inside == 2
        join = in_thread(enter, gate, LARGE + 1)
        wait_until(lambda: gate.num_waiting == 1)
    with join():
        huge = in_thread(enter, gate, 10 * MAX_BYTES)
        wait_until(lambda: gate.num_waiting == 1)
    with huge():
        assert gate.num_inside == 1
        join = in_thread(enter, gate, LARGE)
        wait_until(lambda: gate.num_waiting == 1)
    join().leave()


def test_threads_give_the_gil_up_more_often_while_one_is_inside_of_any_gate():
    usual = sys.getswitchinterval()
    first, second = make_gate(), make_gate()
    places = [enter(gate, LARGE) for gate in (first, second)]
    follower = in_thread(enter, first, MAX_BYTES)
    wait_until(lambda: first.num_waiting == 1)
    for place in places:
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
        place.leave()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL)
    follower().leave()
    assert sys.getswitchinterval() == usual > SWITCH_INTERVAL


@pytest.mark.parametrize("num_busy", [0, 1])
def test_while_jobs_are_served_the_next_waits_as_long_as_the_last_was_inside(monkeypatch, num_busy):
    now, alarms = [100.0], []
    monkeypatch.setattr(gate_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    alarm = SimpleNamespace(set=lambda seconds, call: alarms.append((seconds, call)))
    monkeypatch.setattr(engine, "ALARMS", alarm)
    gate = make_gate(num_busy=num_busy)
    with enter(gate, MAX_BYTES):
        followers = [in_thread(enter, gate, MAX_BYTES) for _ in range(2)]
        wait_until(lambda: gate.num_waiting == 2)
        now[0] += 3
    assert gate.num_inside == 1 - num_busy
    ends = [end for seconds, end in alarms if seconds == 3.0]
    assert len(ends) == num_busy
    for end in ends:
        now[0] += 3
        end()
    assert (gate.num_inside, gate.num_waiting) == (1, 1)
    for place in (gate._inside[0], gate._waiting[0]):
        place.leave()
    [follower() for follower in followers]


def test_a_small_input_takes_no_lock():
    gate = make_gate()
    with gate._lock:
        in_thread(enter, gate, LARGE - 1)().leave()


def test_no_more_wait_than_may_and_none_where_answers_take_the_threads():
    gate = make_gate(max_waiting=0)
    for _ in range(2):
        enter(gate, LARGE)
    for _ in range(2):
        with pytest.raises(engine.Full) as caught:
            enter(gate, LARGE)
        assert caught.value.retry_after >= 1
    assert gate.num_waiting == 0
    gate = make_gate(max_waiting=5, max_busy=100, num_busy=100)
    for _ in range(2):
        enter(gate, LARGE)
    with pytest.raises(engine.Full):
        enter(gate, LARGE)


def test_what_gives_up_makes_room_behind_it():
    gate = make_gate()
    held = enter(gate, MAX_BYTES // 2)

    def give_up():
        if gate.num_waiting == 2:
            raise ClientGone

    huge = in_thread(enter, gate, 2 * MAX_BYTES, give_up)
    wait_until(lambda: gate.num_waiting == 1)
    behind = in_thread(enter, gate, LARGE)
    with behind():
        assert isinstance(huge(), ClientGone)
        assert (gate.num_inside, gate.num_waiting) == (2, 0)
    held.leave()
    held.leave()
    assert gate.num_inside == 0


def test_memory_goes_back_once_when_nothing_has_been_inside_for_a_while(monkeypatch):
    alarms, given = [], []
    alarm = SimpleNamespace(set=lambda seconds, call: alarms.append(call))
    monkeypatch.setattr(engine, "ALARMS", alarm)
    monkeypatch.setattr(engine, "give_memory_back", lambda: given.append(True))
    gate = make_gate()
    with enter(gate, LARGE):
        with enter(gate, LARGE):
            pass
        assert alarms == []
    with enter(gate, LARGE):
        assert len(alarms) == 1
        alarms.pop()()
        assert given == []
    with enter(gate, LARGE):
        pass
    assert len(alarms) == 1
    alarms.pop()()
    assert given == [True]


def doors(client):
    """The paths of all routes that take a body."""
    return [
        rule.rule
        for rule, contract in declared(client.application)
        if contract.body is not None and "POST" in rule.methods
    ]


def test_every_route_that_takes_a_body_lets_it_pass_the_gate_and_leaves_it(make_client):
    client = make_client(max_pending=0)
    gate = gate_of(client)
    assert len(doors(client)) >= 14
    for path in doors(client):
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
    backend = ScriptedBackend(gate=gate)
    client = make_client(backend)
    body = {"prompt": [1], "user": "x" * LARGE, "max_tokens": 2, "stream": stream}
    join = in_thread(lambda: client.post(URL, json=body).get_data())
    wait_until(lambda: backend.enqueued)
    wait_until(lambda: gate_of(client).num_inside == 0)
    gate.open()
    assert b"0 " in join()


def test_where_jobs_have_all_threads_that_they_may_no_large_request_waits(make_client):
    backend = ScriptedBackend(endless)
    client = make_client(backend, max_batch_size=1, max_pending=1, heartbeat=0.05)
    body = {"prompt": [1], "max_tokens": 100, "stream": True}
    streams = [client.post(URL, json=body) for _ in range(2)]
    with enter(gate_of(client), MAX_BYTES):
        response = client.post(URL, json=LONG)
    assert response.status_code == 429
    assert (
        "the queue is full: 0 large requests are already waiting"
        in response.json["error"]["message"]
    )
    for stream in streams:
        stream.close()


def test_a_request_that_fails_in_an_unexpected_way_leaves_too(make_client, caplog):
    client = make_client()
    client.models.lease = lambda *_: 1 / 0
    assert client.post(URL, json={"prompt": [1], "user": "x" * LARGE}).status_code == 500
    assert gate_of(client).num_inside == 0


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_leaves_while_it_waits_gives_its_place_up(make_client, connection, how):
    client = make_client()
    gate = gate_of(client)
    with enter(gate, MAX_BYTES):
        join = in_thread(lambda: client.post(URL, json=LONG, environ_overrides=connection.environ))
        wait_until(lambda: gate.num_waiting == 1)
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


def test_the_time_before_the_gate_counts_for_a_request_s_own_deadline(make_client, monkeypatch):
    client = make_client()
    starts = []

    def noted(queue, first_token, total, since=None):
        starts.append(since)
        return deadlines(queue, first_token, total, since)

    monkeypatch.setattr(submit, "deadlines", noted)
    before = time.monotonic()
    with enter(gate_of(client), MAX_BYTES):
        body = {"prompt": [1], "user": "x" * LARGE, "max_tokens": 1}
        join = in_thread(lambda: client.post(URL, json=body))
        wait_until(lambda: gate_of(client).num_waiting == 1)
        let_in = time.monotonic()
    assert join().status_code == 200
    assert before < starts[-1] < let_in
    assert next_of(deadlines(0, 0, 5, since=100.0)) == 105


class Script:
    """In a connection's place: messages that come, and those that go out."""

    def __init__(self, *messages):
        self.incoming = list(messages)
        self.sent = []

    def wait(self, timeout):
        if not self.incoming and self.sent:
            raise ClientGone

    def messages(self):
        while self.incoming:
            yield json.dumps(self.incoming.pop(0))

    def wake(self):
        pass

    def send(self, message):
        self.sent.append(message)

    def keep_alive(self):
        pass

    def close(self, code, reason):
        pass


def test_the_messages_of_a_websocket_pass_too(make_client):
    client = make_client(ScriptedBackend(endless), max_pending=0)
    gate = gate_of(client)
    with client.application.test_request_context():
        with enter(gate, MAX_BYTES):
            connection = Script({"type": "generate", "id": 1, "prompt": "x" * LARGE})
            Session(connection, 60).run()
            assert connection.sent[0]["status"] == 429
        connection = Script({"type": "generate", "id": 1, "prompt": "x", "user": "x" * LARGE})
        Session(connection, 60).run()
        assert connection.sent[0]["type"] == "chunk"
        assert gate.num_inside == 0


def test_a_message_of_very_many_values_is_refused(make_client):
    client = make_client()
    with client.application.test_request_context():
        connection = Script({"type": "generate", "id": 1, "prompt": [5] * 110_000})
        Session(connection, 60).run()
    assert connection.sent[0]["status"] == 400
    assert "104857 values" in connection.sent[0]["error"]["message"]


def test_what_a_host_generates_passes_too(model_path, monkeypatch):
    def open_scripted(config):
        return engine.Engine(config, lambda d: EngineThread(config, ScriptedBackend, d))

    monkeypatch.setattr(TABLES, "open", open_scripted)
    host = flask.Flask("host")
    with Switchyard(host, model=model_path, max_pending=0) as switchyard, host.app_context():
        gate = gate_of(host.test_client())
        with enter(gate, MAX_BYTES):
            for prompt in (
                {"prompt": "x" * LARGE},
                {"messages": [{"role": "user", "content": "x" * LARGE}]},
                {"prompt": "x", "user": "x" * LARGE},
            ):
                with pytest.raises(engine.Full):
                    switchyard.generate(**prompt)
            assert switchyard.generate("x", max_tokens=1).text == "0 "
        assert switchyard.generate("x", max_tokens=1, user="x" * LARGE).text == "0 "
        with pytest.raises(BadRequest):
            switchyard.generate("x", unknown="x" * LARGE)
        assert gate.num_inside == 0
