"""Pages that watch how the server stands: what they hold, and what they leave to others."""

import json
import pathlib
import re
import select
import socket

import pytest
import requests

from tests.faults.conftest import SCRIPTED, read_all
from tests.hosts.conftest import wait_for
from tests.live.conftest import Server
from tests.operations.conftest import KEYS, bearer, entry

NUM_THREADS = 4 + 8
ASK_ONCE = b"GET /ui/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def serve(tmp_path, model_path):
    """A server of twelve request threads, over the scripted backend."""
    servers = []

    def make(*options, **settings):
        few = dict(max_batch_size=4, max_pending=0, max_websockets=0, reserve_threads=8)
        command = [*SCRIPTED, *options]
        server = Server(command, tmp_path, model=model_path, **{**few, **settings})
        servers.append(server)
        return server.wait_until_ready()

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def watch(opened):
    """Open streams of the status; returns each with what it begins with, to its first frame."""

    def make(server, number=1, **headers):
        lines = [f"{name}: {value}" for name, value in {"Host": "localhost", **headers}.items()]
        request = "\r\n".join(["GET /ui/status HTTP/1.1", *lines]) + "\r\n\r\n"
        connections = [opened(server, request.encode()) for _ in range(number)]
        return [(connection, read_frame(connection)) for connection in connections]

    return make


@pytest.fixture
def opened():
    connections = []

    def make(server, data):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
        connections.append(connection)
        connection.sendall(data)
        return connection

    yield make
    for connection in connections:
        connection.close()


def read_frame(connection):
    """To the end of the next event, of one chunk."""
    received = b""
    while not received.endswith(b"\n\n\r\n"):
        part = connection.recv(65536)
        assert part, received
        received += part
    return received


def busy(server):
    return requests.get(f"{server.url}/v1/status", timeout=30).json()["threads"]["busy"]


def test_viewers_hold_no_request_thread_and_get_a_frame_a_second(serve, watch, opened):
    most = 3 * NUM_THREADS  # half of the connections that request threads leave
    server = serve("--worker-connections", str(NUM_THREADS + 2 * most))
    viewers = watch(server, most)
    assert b"retry: 5000" in read_all(opened(server, ASK_ONCE))
    for connection, first in viewers:
        assert b"\r\nConnection: close\r\n" in first and b"retry:" not in first
        told = json.loads(re.search(rb"data: (.*)\n", read_frame(connection))[1])
        assert told["models"][0]["state"] == "ready"
    wait_for(lambda: busy(server) == 1)  # that one itself
    answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert answer.status_code == 200, answer.text


def test_a_viewer_without_a_place_gets_one_frame_and_comes_again(serve, watch, opened):
    server = serve(max_viewers=2)
    [(leaver, _), _] = watch(server, 2)
    late = read_all(opened(server, ASK_ONCE))
    assert b"\r\n\r\n" in late and b"retry: 5000\ndata: {" in late and late.endswith(b"0\r\n\r\n")
    leaver.close()

    def has_place():
        connection = opened(server, ASK_ONCE)
        received = b""
        while b"data: " not in received:
            received += connection.recv(65536)
        connection.close()
        return b"retry:" not in received

    wait_for(has_place)


def test_a_viewer_who_has_left_leaves_no_connection(serve, watch):
    server = serve()
    for connection, _ in watch(server, 5):
        connection.close()
    state = re.compile(rf":{server.port:04X} \S+ (01|08) ")  # established, or closed by them alone
    table = pathlib.Path("/proc/net/tcp")
    wait_for(lambda: not [x for x in table.read_text().splitlines()[1:] if state.search(x)])


def test_the_end_of_the_server_ends_the_streams_in_good_order(serve, watch):
    server = serve()
    viewers = watch(server, 5)
    assert server.stop() == 0, server.output
    for connection, _ in viewers:
        assert read_all(connection).endswith(b"\n\n\r\n0\r\n\r\n")


def test_what_a_viewer_sends_behind_its_request_harms_nothing(serve, watch):
    server = serve()
    [(connection, _)] = watch(server)
    connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
    for _ in range(2):
        assert b"data: {" in read_frame(connection)
    assert not select.select([connection], [], [], 0)[0]
    connection.close()
    assert requests.get(f"{server.url}/health/live", timeout=30).status_code == 200


def test_a_key_that_is_taken_back_ends_its_stream(serve, watch, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(entry("ann") + entry("root"))
    path.chmod(0o600)
    server = serve(keys_file=path)
    [(connection, _)] = watch(server, **bearer("ann"))
    [(other, _)] = watch(server, **bearer("root"))
    path.write_text(entry("root"))
    assert read_all(connection).endswith(b"0\r\n\r\n")
    assert b"data: {" in read_frame(other)
    answer = requests.get(f"{server.url}/ui/status", headers=bearer("ann"), timeout=30)
    assert answer.status_code == 401 and KEYS["ann"] not in server.output
