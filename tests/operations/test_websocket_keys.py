"""Keys on a WebSocket, to a real server."""

import json
import os

import pytest
import websocket

from tests.faults.conftest import SCRIPTED
from tests.live.conftest import GUNICORN, Server
from tests.operations.conftest import KEYS, KeysFile, bearer, entry

KEY = f"openai-insecure-api-key.{KEYS['ann']}"

ENTRIES = {"ann": entry("ann"), "bob": entry("bob", concurrency=1, max_tokens=2000)}


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    return KeysFile(path).write(*ENTRIES.values())


@pytest.fixture(scope="module")
def server(tmp_path_factory, model_path, keys_file):
    directory = tmp_path_factory.mktemp("server")
    server = Server(GUNICORN, directory, model=model_path, keys_file=keys_file.path)
    yield server.wait_until_ready()
    assert server.stop() == 0, server.output


@pytest.fixture
def connect(server):
    opened = []

    def connect(**more):
        url = server.url.replace("http", "ws") + "/v1/stream"
        opened.append(websocket.create_connection(url, timeout=30, **more))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def generate(connection, id, **more):
    connection.send(json.dumps({"type": "generate", "id": id, "prompt": "x", **more}))


def until(connection, *types):
    while (message := json.loads(connection.recv()))["type"] not in types:
        pass
    return message


@pytest.mark.parametrize(
    ("protocols", "answered"), [(["realtime", KEY], "realtime"), ([KEY, "realtime"], "realtime")]
)
def test_a_browser_gives_its_key_among_the_subprotocols(connect, protocols, answered):
    connection = connect(subprotocols=protocols)
    assert connection.getsubprotocol() == answered
    generate(connection, 1, max_tokens=2)
    assert until(connection, "end", "error")["type"] == "end"


def test_the_key_is_no_subprotocol_that_is_answered(connect):
    connection = connect(header={"Sec-WebSocket-Protocol": KEY})
    assert "sec-websocket-protocol" not in connection.getheaders()


def test_a_header_does_as_well(connect):
    connection = connect(header=bearer("ann"))
    generate(connection, 1, max_tokens=2)
    assert until(connection, "end", "error")["type"] == "end"


@pytest.mark.parametrize("protocols", [None, ["openai-insecure-api-key.wrong"]])
def test_without_a_key_the_handshake_is_refused(connect, protocols):
    with pytest.raises(websocket.WebSocketBadStatusException) as refused:
        connect(subprotocols=protocols)
    assert refused.value.status_code == 401


def test_each_generation_counts_as_a_request(connect):
    connection = connect(header=bearer("bob"))
    generate(connection, 1, max_tokens=1500, ignore_eos=True)
    assert until(connection, "chunk")["id"] == 1
    generate(connection, 2, max_tokens=1)
    error = until(connection, "error")
    assert (error["id"], error["status"]) == (2, 429)
    assert error["error"]["code"] == "rate_limit_exceeded"
    assert "1 requests at once" in error["error"]["message"]
    assert error["retry_after"] == 1
    connection.send(json.dumps({"type": "cancel", "id": 1}))
    assert until(connection, "end")["finish_reason"] == "cancelled"
    for _ in range(50):  # the place is given back once the job has ended
        generate(connection, 3, max_tokens=1)
        if until(connection, "end", "error")["type"] == "end":
            return
    pytest.fail("the place was not given back")


def test_a_key_that_is_valid_no_more_begins_nothing_more(connect, keys_file):
    connection = connect(header=bearer("ann"))
    try:
        keys_file.write(ENTRIES["bob"])
        os.utime(keys_file.path)
        for id in range(3000):
            generate(connection, id, max_tokens=1)
            if (message := until(connection, "end", "error"))["type"] == "error":
                break
        assert (message["status"], message["error"]["code"]) == (401, "invalid_api_key")
    finally:
        keys_file.write(*ENTRIES.values())


def test_each_generation_has_a_line_and_so_has_the_connection(start, keys_file, tmp_path):
    path = tmp_path / "access.log"
    server = start(SCRIPTED, keys_file=keys_file.path, access_log=path, log_format="json")
    server.wait_until_ready()
    url = server.url.replace("http", "ws") + "/v1/stream"
    with pytest.raises(websocket.WebSocketBadStatusException):
        websocket.create_connection(url, timeout=30)
    connection = websocket.create_connection(url, timeout=30, header=bearer("ann"))
    for id, max_tokens in ((1, 2), (2, 3)):
        generate(connection, id, max_tokens=max_tokens)
        assert until(connection, "end")["id"] == id
    generate(connection, 3, max_tokens=1, model="none")
    until(connection, "error")
    connection.close()
    assert server.stop() == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    names = ("status", "code", "completion_tokens", "key")
    assert sorted((tuple(line[name] for name in names) for line in lines), key=str) == [
        *((101, None, None, "ann"), (200, None, 2, "ann"), (200, None, 3, "ann")),
        *((401, "invalid_api_key", None, None), (404, "model_not_found", None, "ann")),
    ]
    assert {line["route"] for line in lines} == {"/v1/stream"}
