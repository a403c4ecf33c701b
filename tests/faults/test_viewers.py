"""Pages that watch how the server stands: what they hold, and what they leave to others."""

import contextlib
import json
import re
import select
import socket

import pytest

from tests.faults.conftest import SCRIPTED, connections_of, read_all
from tests.live.conftest import shared_server
from tests.operations.conftest import KEYS, KeysFile, bearer, entry

NUM_THREADS = 4 + 8
ASK_ONCE = b"GET /ui/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


FEW = dict(max_batch_size=4, max_pending=0, max_websockets=0, reserve_threads=8)
few = shared_server(SCRIPTED, **FEW)


@pytest.fixture
def watch(opened):
    """Open streams of the status; returns each with what it begins with, to its first frame."""

    def make(server, number=1, **headers):
        lines = [f"{name}: {value}\r\n" for name, value in {"Host": "localhost", **headers}.items()]
        request = f"GET /ui/status HTTP/1.1\r\n{''.join(lines)}\r\n"
        connections = [opened(server, request.encode()) for _ in range(number)]
        return [(connection, read_frame(connection)) for connection in connections]

    return make


@pytest.fixture
def opened():
    with contextlib.ExitStack() as stack:

        def make(server, data):
            address = ("127.0.0.1", server.port)
            connection = stack.enter_context(socket.create_connection(address, timeout=30))
            connection.sendall(data)
            return connection

        yield make


def read_frame(connection):
    """To the end of the next event, of one chunk."""
    received = b""
    while not received.endswith(b"\n\n\r\n"):
        part = connection.recv(65536)
        assert part, received
        received += part
    return received


def test_viewers_hold_no_request_thread_and_get_a_frame_a_second(start, watch, opened):
    most = 3 * NUM_THREADS  # half of the connections that request threads leave
    options = ["--worker-connections", str(NUM_THREADS + 2 * most)]
    server = start([*SCRIPTED, *options], **FEW).wait_until_ready()
    viewers = watch(server, most)
    assert b"retry: 5000" in read_all(opened(server, ASK_ONCE))
    for connection, first in viewers:
        assert b"\r\nConnection: close\r\n" in first and b"retry:" not in first
        told = json.loads(re.search(rb"data: (.*)\n", read_frame(connection))[1])
        assert told["models"][0]["state"] == "ready"
    # That one itself.
    server.wait_for(lambda: server.get("/v1/status").json()["threads"]["busy"] == 1)
    answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
    assert answer.status_code == 200, answer.text


def test_a_viewer_without_a_place_comes_again_and_the_end_ends_streams_in_good_order(
    start, watch, opened
):
    server = start(SCRIPTED, max_viewers=2).wait_until_ready()
    [(leaver, _), (viewer, _)] = watch(server, 2)
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

    server.wait_for(has_place)
    assert server.stop() == 0, server.output
    assert read_all(viewer).endswith(b"\n\n\r\n0\r\n\r\n")


def test_a_viewer_who_has_left_leaves_no_connection(few, watch):
    for connection, _ in watch(few, 5):
        connection.close()
    few.wait_for(lambda: not connections_of(few.port))


def test_what_a_viewer_sends_behind_its_request_harms_nothing(few, watch):
    [(connection, _)] = watch(few)
    connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100)
    for _ in range(2):
        assert b"data: {" in read_frame(connection)
    assert not select.select([connection], [], [], 0)[0]
    connection.close()
    assert few.get("/health/live").status_code == 200


def test_a_key_that_is_taken_back_ends_its_stream(start, watch, tmp_path):
    keys = KeysFile(tmp_path / "keys.toml").write(entry("ann"), entry("root"))
    server = start(SCRIPTED, keys_file=keys.path).wait_until_ready()
    [(connection, _)] = watch(server, **bearer("ann"))
    [(other, _)] = watch(server, **bearer("root"))
    keys.write(entry("root"))
    assert read_all(connection).endswith(b"0\r\n\r\n")
    assert b"data: {" in read_frame(other)
    answer = server.get("/ui/status", headers=bearer("ann"))
    assert answer.status_code == 401 and KEYS["ann"] not in server.output
