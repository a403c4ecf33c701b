"""Sessions of /v1/stream in the process of the test, with a clock that it sets."""

import itertools
import json
import time

import pytest
from wsproto.events import CloseConnection

from switchyard.app.formats.websocket import connection as websocket_connection
from switchyard.app.formats.websocket import session
from switchyard.engine.messages import Chunk, Finished
from tests.app.websocket_client import Client
from tests.scripted import Gate, ScriptedBackend, says


@pytest.fixture
def connect():
    clients = []

    def connect(application):
        clients.append(Client(application))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def look_around(connection):
    """Until the session has looked at the time. The second is answered behind such a look."""
    for _ in range(2):
        connection.send("cancel", "another")
        assert connection.receive()["error"]["code"] == "unknown_id"


def test_a_model_is_held_by_a_message_and_not_by_its_connection(serve, connect):
    client = serve()
    connection = connect(client.application)
    for model in ("first", "second"):
        connection.send("generate", model, prompt="x", max_tokens=2, model=model)
        assert connection.receive()["type"] == "end"
        look_around(connection)
        assert client.models.status(model).num_leases == 0


class Clock:
    """Notes each look at it."""

    def __init__(self):
        self.now, self.looks = 1000.0, []

    def monotonic(self):
        self.looks.append(self.now)
        return self.looks[-1]


def test_idle_time_begins_when_the_last_generation_has_ended(serve, connect, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("switchyard.app.formats.websocket.session.time", clock)
    gate = Gate()
    client = serve({"first": ScriptedBackend(gate=gate)}, websocket_timeout=10)
    connection = connect(client.application)
    connection.send("generate", 1, prompt="x", max_tokens=2)
    look_around(connection)
    clock.now += 60
    while clock.now not in clock.looks:
        time.sleep(0.005)
    gate.open()
    assert connection.receive()["type"] == "end"
    look_around(connection)
    clock.now += 10
    assert connection.receive()["error"]["code"] == "websocket_timeout"


def test_the_account_ends_of_a_generation_whose_client_has_left(serve):
    gate = Gate()
    client = serve({"first": ScriptedBackend(gate=gate)})
    connection = Client(client.application)
    connection.send("generate", 1, prompt="x", max_tokens=2)
    look_around(connection)
    connection.close()
    gate.open()
    count = 'switchyard_requests_total{key="none",model_name="first"} 1.0'
    for _ in range(400):
        if count in client.get("/metrics").text:
            return
        time.sleep(0.05)
    raise AssertionError("the account is still open")


def test_generations_go_on_while_another_waits_for_its_model(serve, connect):
    gate, loading = Gate(), ScriptedBackend()
    loading.opening.clear()
    client = serve({"first": ScriptedBackend(gate=gate), "second": loading})
    connection = connect(client.application)
    connection.send("generate", 1, prompt="x", max_tokens=2)
    connection.send("generate", 2, prompt="x", max_tokens=2, model="second")
    while not client.models.status("second").num_waiting:
        time.sleep(0.005)
    gate.open()
    message = connection.receive()
    assert (message["type"], message["id"]) == ("end", 1)
    loading.opening.set()
    message = connection.receive()
    assert (message["type"], message["id"]) == ("end", 2)


CHAT = [{"role": "user", "content": "x"}]


def test_what_is_null_is_not_given(serve, connect):
    connection = connect(serve().application)
    connection.send("generate", 1, prompt="x", messages=None)
    assert connection.receive()["type"] == "end"
    connection.send("generate", 2, prompt=None, messages=CHAT)
    assert connection.receive()["type"] == "end"


def test_presets_and_unknown_parameters_are_as_in_other_formats(serve, connect):
    backend = ScriptedBackend(says("a"))
    presets = {"calm": {"temperature": 0.3}}
    client = serve({"first": backend}, presets=presets, unknown_parameters="ignore")
    connection = connect(client.application)
    connection.send("generate", 1, prompt="x", preset="calm", unheard=1)
    assert connection.receive()["ignored"] == "unheard"
    assert backend.enqueued[0].sampling.temperature == 0.3


def test_thoughts_may_be_left_out(serve, connect):
    client = serve({"first": ScriptedBackend(says("<think>", "hm", "</think>", "yes"))})
    connection = connect(client.application)
    for include in (True, False):
        connection.send("generate", 1, messages=CHAT, include_reasoning=include)
        told = ""
        for message in connection.messages():
            if message["type"] == "end":
                break
            told += message.get("reasoning_content", "")
        assert told == ("hm" if include else "")


def test_a_tool_that_must_be_called_binds_the_answer(serve, connect):
    backend = ScriptedBackend(says("a"))
    connection = connect(serve({"first": backend}).application)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    connection.send("generate", 1, messages=CHAT, tools=[tool], tool_choice="required")
    connection.receive()
    assert backend.enqueued[0].constraint is not None


CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def until_end(connection):
    """All messages of one generation; the last is its end."""
    messages = []
    for message in connection.messages():
        messages.append(message)
        if message["type"] != "chunk":
            return messages
    raise AssertionError


def test_a_call_of_a_tool_comes_in_pieces_and_is_the_reason_of_the_end(serve, connect):
    client = serve({"first": ScriptedBackend(says("Sure.", CALL))})
    connection = connect(client.application)
    connection.send("generate", 1, messages=CHAT, tools=[TOOL])
    text, call, *arguments, end = until_end(connection)
    assert text == {"type": "chunk", "id": 1, "text": "Sure."}
    [called] = call["tool_calls"]
    assert (called["type"], called["function"]) == ("function", {"name": "f", "arguments": ""})
    pieces = [piece["tool_calls"][0]["function"]["arguments"] for piece in arguments]
    assert json.loads("".join(pieces)) == {"a": 1}
    assert (end["type"], end["finish_reason"]) == ("end", "tool_calls")


def test_an_answer_that_may_call_once_ends_behind_its_call(serve, connect):
    def goes_on(job):
        yield from itertools.islice(says(CALL)(job), 2)
        while True:
            yield Chunk(job.identifier, "x", (0,))

    connection = connect(serve({"first": ScriptedBackend(goes_on)}).application)
    connection.send("generate", 1, messages=CHAT, tools=[TOOL], parallel_tool_calls=False)
    end = until_end(connection)[-1]
    assert (end["type"], end["finish_reason"]) == ("end", "tool_calls")


def test_the_end_tells_what_it_ended_at_and_the_usage(serve, connect):
    def script(job):
        yield Chunk(job.identifier, "x", (0,))
        yield Finished(job.identifier, "stop", 9, 2, 4, stop_reason="END")

    connection = connect(serve({"first": ScriptedBackend(script)}).application)
    for asked in ({"prompt": "x"}, {"messages": CHAT}):
        connection.send("generate", "a", **asked, stop=["END"])
        assert until_end(connection)[-1] == {
            "type": "end",
            "id": "a",
            "finish_reason": "stop",
            "stop_reason": "END",
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "total_tokens": 11,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        }


def test_a_fault_of_the_server_ends_the_connection_with_its_code(
    serve, connect, monkeypatch, caplog
):
    connection = connect(serve().application)
    monkeypatch.setattr(session.Session, "_go_on", lambda self: 1 / 0)
    connection.send("cancel", 1)
    end = next(event for event in connection._events if isinstance(event, CloseConnection))
    assert end.code == 1011 and "unexpected" in end.reason
    assert "ZeroDivisionError" in caplog.text


def test_a_client_that_does_not_answer_a_closing_is_left(serve, connect, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("switchyard.app.formats.websocket.session.time", clock)
    monkeypatch.setattr(websocket_connection, "CLOSE_TIMEOUT", 0.05)
    connection = connect(serve(websocket_timeout=10).application)
    look_around(connection)
    clock.now += 60
    assert connection.receive_closing() == 1000
    connection.join()
