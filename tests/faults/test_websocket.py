"""/v1/stream over real sockets, with a real client."""

import json
import socket
import struct
import threading

import pytest
import websocket

from tests.faults.conftest import SCRIPTED
from tests.faults.paced import FAIL, THINK
from tests.faults.websockets import HANDSHAKE, LONG, Client, wait_until_free, wait_until_idle
from tests.live.conftest import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_path):
    directory = tmp_path_factory.mktemp("websocket")
    settings = {"model_aliases": '{"gpt-*": "tiny"}', "max_websockets": 8, "heartbeat": 0.5}
    server = Server(SCRIPTED, directory, model=model_path, **settings)
    yield server.wait_until_ready()
    assert server.stop() == 0, server.output
    assert "a WebSocket failed" not in server.output


@pytest.fixture
def client(server):
    client = Client(server)
    yield client
    client.close()
    wait_until_idle(server)


def text(messages, id):
    return "".join(m.get("text", "") for m in messages if m["id"] == id)


def test_a_model_is_known_by_its_aliases_here_too(client):
    client.send("generate", 1, prompt="x", max_tokens=2, model="gpt-5")
    client.send("generate", 2, prompt="x", max_tokens=2, model="claude")
    ended, refused = client.ends(1, 2)
    assert ended["finish_reason"] == "length"
    assert refused["error"]["code"] == "model_not_found"


def test_the_end_tells_what_asked_for_nothing(client):
    client.send("generate", "a", prompt="x", max_tokens=2, store=False, verbosity="low")
    client.send("generate", "b", prompt="x", max_tokens=2)
    a, b = client.ends("a", "b")
    assert a["ignored"] == "store,verbosity" and "ignored" not in b


def test_several_generations_run_side_by_side_each_with_its_own_text(client):
    for i in range(8):
        client.send("generate", i, prompt="x" * (i + 1), max_tokens=20 + i)
    ended, messages = set(), []
    while len(ended) < 8:
        messages.append(last := client.receive())
        if last["type"] == "end":
            ended.add(last["id"])
            assert last["finish_reason"] == "length"
            assert last["usage"]["completion_tokens"] == 20 + last["id"]
    for i in range(8):
        assert text(messages, i) == "".join(f"{k} " for k in range(20 + i))
    first = [m["id"] for m in messages if m["type"] == "chunk"][:16]
    assert len(set(first)) > 1  # not one after the other


def test_a_conversations_thoughts_are_told_apart(client):
    client.send("generate", "a", messages=[{"role": "user", "content": "Hi"}], seed=THINK)
    messages = client.until("a", "end")
    assert text(messages, "a") == "yes"
    assert "".join(m.get("reasoning_content", "") for m in messages) == "hm"
    last = messages[-1]
    assert last["finish_reason"] == "stop"
    assert last["usage"]["completion_tokens_details"]["reasoning_tokens"] >= 1


def test_a_cancelled_generation_ends_with_what_there_was_and_the_others_go_on(client):
    client.send("generate", "a", **LONG)
    client.send("generate", "b", prompt="x", max_tokens=100)
    client.until("a", "chunk")
    client.send("cancel", "a")
    a, b = client.ends("a", "b")
    assert (a["finish_reason"], b["finish_reason"]) == ("cancelled", "length")


def test_a_failed_generation_is_an_error_of_its_own(client):
    client.send("generate", "a", prompt="x", max_tokens=200, seed=FAIL)
    last = client.until("a", "error", "end")[-1]
    assert last["type"] == "error"
    assert (last["status"], last["error"]["code"]) == (500, "batch_failed")


def test_a_deadline_ends_one_generation_which_does_not_go_on(server, client):
    client.send("generate", "a", **LONG, timeout=1)
    client.send("generate", "b", prompt="x", max_tokens=150)
    a, b = client.ends("a", "b")
    assert (a["type"], a["status"], a["error"]["code"]) == ("error", 408, "total_timeout")
    assert a["error"]["usage"]["completion_tokens"] > 0
    assert b["finish_reason"] == "length"
    wait_until_idle(server, timeout=10)  # of the 20 that it would take


GENERATE = {"type": "generate", "id": 1, "prompt": "x"}


@pytest.mark.parametrize(
    ("message", "id", "param", "code"),
    [
        ("{", None, None, "invalid_json"),
        ("[1]", None, None, "invalid_json"),
        (b"{}", None, None, "invalid_json"),
        ({}, None, "type", "missing_required_parameter"),
        ({"type": "generate", "prompt": "x"}, None, "id", "missing_required_parameter"),
        (GENERATE | {"type": "generat"}, None, "type", "invalid_value"),
        (GENERATE | {"id": []}, None, "id", "invalid_value"),
        (GENERATE | {"id": ""}, None, "id", "invalid_value"),
        (GENERATE | {"id": "x" * 101}, None, "id", "invalid_value"),
        ({"type": "generate", "id": 1}, 1, "prompt", "missing_required_parameter"),
        (GENERATE | {"top_p": 2}, 1, "top_p", "invalid_value"),
        (GENERATE | {"n": 2}, 1, "n", "unsupported_parameter"),
        (GENERATE | {"stream": False}, 1, "stream", "unsupported_parameter"),
        (GENERATE | {"messages": []}, 1, "prompt", "invalid_value"),
        ({"type": "generate", "id": 1, "messages": [7]}, 1, "messages.0", "invalid_value"),
        (GENERATE | {"model": "y"}, 1, "model", "model_not_found"),
        (GENERATE | {"prompt": "word " * 9999}, 1, "prompt", "context_length_exceeded"),
        ({"type": "cancel", "id": 1}, None, "id", "unknown_id"),
        ({"type": "cancel", "id": 1, "why": 1}, None, "why", "unknown_parameter"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_message_is_answered_and_the_connection_lives(
    client, message, id, param, code
):
    if isinstance(message, bytes):
        client.socket.send_binary(message)
    else:
        client.socket.send(message if isinstance(message, str) else json.dumps(message))
    error = client.receive()
    assert (error["type"], error["id"]) == ("error", id)
    assert (error["error"]["param"], error["error"]["code"]) == (param, code)
    client.send("generate", 1, prompt="x", max_tokens=1)
    assert client.until(1, "end")


def test_an_id_in_use_is_refused_without_ending_the_one_at_work(client):
    client.send("generate", "a", **LONG)
    client.send("generate", "a", **LONG)
    error = client.until(None, "error")[-1]
    assert error["error"]["param"] == "id"
    client.send("cancel", "a")
    assert client.until("a", "end")[-1]["finish_reason"] == "cancelled"
    client.send("generate", "a", prompt="x", max_tokens=1)  # it is free again
    assert client.until("a", "end")


def test_more_generations_than_a_connection_may_have_are_refused(client):
    for i in range(33):
        client.send("generate", i, **LONG)
    error = client.until(32, "error", "end")[-1]
    assert (error["status"], error["error"]["code"]) == (429, "queue_full")
    assert error["retry_after"] >= 1


@pytest.mark.parametrize("way", ["close", "reset", "vanish"])
def test_who_leaves_has_all_jobs_cancelled_within_a_second(server, way):
    client = Client(server)
    for i in range(10):
        client.send("generate", i, **LONG)
    client.until(9, "chunk")
    if way == "close":
        client.socket.send_close()
    else:
        if way == "reset":
            linger = struct.pack("ii", 1, 0)
            client.socket.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.socket.sock.close()
    wait_until_idle(server, timeout=10)  # of 20; a second when nobody else is at work here
    client.close()


def test_pings_come_while_there_is_nothing_to_say(client):
    kinds = [client.socket.recv_data_frame(control_frame=True)[0] for _ in range(3)]
    assert kinds == [websocket.ABNF.OPCODE_PING] * 3
    client.send("generate", 1, prompt="x", max_tokens=1)
    assert client.until(1, "end")


def test_the_clients_pings_are_answered(client):
    client.socket.ping("are you there?")
    assert client.frame_of(websocket.ABNF.OPCODE_PONG).data == b"are you there?"


def test_many_messages_at_once_are_all_answered(client):
    """More than is received ahead, by far."""
    thread = threading.Thread(
        target=lambda: [client.send("cancel", i, padding="x" * 1000) for i in range(1000)]
    )
    thread.start()
    for _ in range(1000):
        assert client.receive()["error"]["param"] == "padding"
    thread.join()


def test_more_connections_than_may_be_are_refused_and_probes_are_answered(server):
    wait_until_free(server).close()
    clients = [wait_until_free(server) for _ in range(4)]
    response = server.get("/v1/stream", headers=HANDSHAKE)
    assert response.status_code == 429
    assert int(response.headers["Retry-After"]) >= 1
    assert "4 WebSockets are open from this address" in response.json()["error"]["message"]
    others = [Client(server, address="127.0.0.2") for _ in range(4)]  # which have places left
    with pytest.raises(websocket.WebSocketBadStatusException, match="8 WebSockets are open"):
        Client(server, address="127.0.0.3")
    assert server.get("/health/live").status_code == 200
    clients.pop().close()
    clients.append(wait_until_free(server))
    for client in [*clients, *others]:
        client.close()


@pytest.mark.parametrize(
    ("headers", "status", "message"),
    [
        ({}, 400, "handshake"),
        ({**HANDSHAKE, "Origin": "https://page.example"}, 403, "cors_origins"),
        ({**HANDSHAKE, "Host": "page.example"}, 403, "allowed_hosts"),
        ({**HANDSHAKE, "Sec-WebSocket-Version": "8"}, 400, "no WebSocket handshake"),
        ({**HANDSHAKE, "Sec-WebSocket-Key": None}, 400, "no WebSocket handshake"),
    ],
)
def test_what_is_no_handshake_is_refused_in_http(server, headers, status, message):
    response = server.get("/v1/stream", headers=headers)
    assert response.status_code == status
    error = response.json()["error"]
    assert message in error["message"]
    assert error["code"] == ("invalid_handshake" if status == 400 else None)
    wait_until_free(server).close()  # and holds no place
