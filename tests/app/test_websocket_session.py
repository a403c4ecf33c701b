"""Who gets a WebSocket at /v1/stream, and its session, with a clock that the test sets."""

import itertools
import json
import socket
import time

import pytest
import wsproto
from wsproto.events import CloseConnection
from wsproto.extensions import PerMessageDeflate

from switchyard.app.formats.websocket import connection as websocket_connection
from switchyard.app.formats.websocket import session
from switchyard.engine.messages import Chunk, Finished
from tests.app.refused import error_of
from tests.app.test_lifecycle import events
from tests.app.websocket_client import Client, handshake
from tests.conftest import wait_for
from tests.scripted import Gate, ScriptedBackend, says

URL = "/v1/stream"


@pytest.fixture
def connect():
    clients = []

    def connect(client):
        clients.append(Client(client.application))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def headers_of(**more):
    return handshake(wsproto.WSConnection(wsproto.ConnectionType.CLIENT), **more)


def refused(client, ours):
    """The status and code of a refusal before the handshake."""
    shown = {"werkzeug.socket": ours}
    response = client.get(URL, headers=headers_of(), environ_overrides=shown)
    return response.status_code, response.json and response.json["error"]["code"]


def test_a_server_that_drains_opens_no_more(serve, ends):
    client = serve()
    assert events(client.post("/v1/model/load", json={"name": "second"}))  # is on demand
    client.models.drain()
    ends[1].shutdown(socket.SHUT_WR)
    assert refused(client, ends[0]) == (503, "overloaded")


def test_a_model_that_is_there_from_the_start_must_be_ready(loading, ends):
    ends[1].shutdown(socket.SHUT_WR)
    assert refused(loading(), ends[0]) == (503, "overloaded")


def test_a_model_that_is_loaded_on_demand_need_not(serve, connect):
    client = serve()
    assert events(client.post("/v1/model/load", json={"name": "second"}))
    client.models.unload("second").wait(20)
    assert client.models.served().config.name == "second"
    assert client.models.status("second").state == "unloaded"
    connection = connect(client)
    connection.send("generate", 1, prompt="x", max_tokens=1)
    assert connection.receive()["type"] == "end"


def test_a_server_that_shows_no_socket_says_so(serve):
    error = error_of(serve().get(URL, headers=headers_of()), 501)
    assert "no socket" in error["message"]


def test_messages_are_not_compressed(serve, ends):
    ours, theirs = ends
    headers = headers_of(extensions=[PerMessageDeflate()])
    assert "Sec-WebSocket-Extensions" in headers
    theirs.shutdown(socket.SHUT_WR)  # it leaves at once
    serve().get(URL, headers=headers, environ_overrides={"werkzeug.socket": ours})
    answer = theirs.recv(65536)
    assert b" 101 " in answer and b"extensions" not in answer.lower()


def look_around(connection):
    """Until the session has looked at the time. The second is answered behind such a look."""
    for _ in range(2):
        connection.send("cancel", "another")
        assert connection.receive()["error"]["code"] == "unknown_id"


def test_a_model_is_held_by_a_message_and_not_by_its_connection(serve, connect):
    client = serve()
    connection = connect(client)
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
    connection = connect(serve({"first": ScriptedBackend(gate=gate)}, websocket_timeout=10))
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
    connection = connect(client)
    connection.send("generate", 1, prompt="x", max_tokens=2)
    connection.send("generate", 2, prompt="x", max_tokens=2, model="second")
    wait_for(lambda: client.models.status("second").num_waiting)
    gate.open()
    message = connection.receive()
    assert (message["type"], message["id"]) == ("end", 1)
    loading.opening.set()
    message = connection.receive()
    assert (message["type"], message["id"]) == ("end", 2)


CHAT = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_what_is_null_is_not_given(serve, connect):
    connection = connect(serve())
    connection.send("generate", 1, prompt="x", messages=None)
    assert connection.receive()["type"] == "end"
    connection.send("generate", 2, prompt=None, messages=CHAT)
    assert connection.receive()["type"] == "end"


def test_presets_and_unknown_parameters_are_as_in_other_formats(serve, connect):
    backend = ScriptedBackend(says("a"))
    presets = {"calm": {"temperature": 0.3}}
    connection = connect(serve({"first": backend}, presets=presets, unknown_parameters="ignore"))
    connection.send("generate", 1, prompt="x", preset="calm", unheard=1)
    assert connection.receive()["ignored"] == "unheard"
    assert backend.enqueued[0].sampling.temperature == 0.3


def test_thoughts_may_be_left_out(serve, connect):
    connection = connect(serve({"first": ScriptedBackend(says("<think>", "hm", "</think>", "ok"))}))
    for include in (True, False):
        connection.send("generate", 1, messages=CHAT, include_reasoning=include)
        told = [message.get("reasoning_content", "") for message in until_end(connection)]
        assert "".join(told) == ("hm" if include else "")


def test_a_tool_that_must_be_called_binds_the_answer(serve, connect):
    backend = ScriptedBackend(says("a"))
    connection = connect(serve({"first": backend}))
    connection.send("generate", 1, messages=CHAT, tools=[TOOL], tool_choice="required")
    connection.receive()
    assert backend.enqueued[0].constraint is not None


CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def until_end(connection):
    """All messages of one generation; the last is its end."""
    messages = []
    for message in connection.messages():
        messages.append(message)
        if message["type"] != "chunk":
            return messages
    raise AssertionError


def test_a_call_of_a_tool_comes_in_pieces_and_is_the_reason_of_the_end(serve, connect):
    connection = connect(serve({"first": ScriptedBackend(says("Sure.", CALL))}))
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

    connection = connect(serve({"first": ScriptedBackend(goes_on)}))
    connection.send("generate", 1, messages=CHAT, tools=[TOOL], parallel_tool_calls=False)
    end = until_end(connection)[-1]
    assert (end["type"], end["finish_reason"]) == ("end", "tool_calls")


def test_the_end_tells_what_it_ended_at_and_the_usage(serve, connect):
    def script(job):
        yield Chunk(job.identifier, "x", (0,))
        yield Finished(job.identifier, "stop", 9, 2, 4, stop_reason="END")

    connection = connect(serve({"first": ScriptedBackend(script)}))
    for asked in ({"prompt": "x"}, {"messages": CHAT}):
        connection.send("generate", "a", **asked, stop=["END"])
        assert until_end(connection)[-1] == {
            **{"type": "end", "id": "a", "finish_reason": "stop", "stop_reason": "END"},
            "usage": {
                **{"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 0},
            },
        }


def test_a_fault_of_the_server_ends_a_connection_with_its_code(serve, connect, monkeypatch, caplog):
    connection = connect(serve())
    monkeypatch.setattr(session.Session, "_go_on", lambda self: 1 / 0)
    connection.send("cancel", 1)
    end = next(event for event in connection._events if isinstance(event, CloseConnection))
    assert end.code == 1011 and "unexpected" in end.reason
    assert "ZeroDivisionError" in caplog.text


def test_a_client_that_does_not_answer_a_closing_is_left(serve, connect, monkeypatch):
    clock = Clock()
    monkeypatch.setattr("switchyard.app.formats.websocket.session.time", clock)
    monkeypatch.setattr(websocket_connection, "CLOSE_TIMEOUT", 0.05)
    connection = connect(serve(websocket_timeout=10))
    look_around(connection)
    clock.now += 60
    assert connection.receive_closing() == 1000
    connection.join()
