"""What holds a request thread, and what doesn't: heads, bodies and readers as slow as can be."""

import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import struct
import time

import pytest

from tests.faults.conftest import connections_of, open_request, read_all, worker_of
from tests.faults.heads import HASTY, MAX_SLOW, NUM_THREADS, head
from tests.live.conftest import shared_server

URL = "/v1/completions"
ONE = {"prompt": "x", "max_tokens": 1}
CHUNKED = "Transfer-Encoding: chunked"  # whose body a thread reads


small = shared_server(  # of few threads: four jobs, eight in reserve
    HASTY,
    max_batch_size=4,
    max_pending=0,
    max_websockets=0,
    reserve_threads=8,
    max_body_bytes=100_000,
)


@pytest.fixture
def opened(small):
    """Makes connections on which some bytes have been sent; they are closed in the end, and the
    server has no more to do with them.
    """
    with contextlib.ExitStack() as stack:

        def make(data=b""):
            address = ("127.0.0.1", small.port)
            connection = stack.enter_context(socket.create_connection(address, timeout=60))
            connection.sendall(data)
            return connection

        yield make
    small.wait_for(lambda: not connections_of(small.port))


def read_head(connection):
    received = b""
    while b"\r\n\r\n" not in received and (part := connection.recv(65536)):
        received += part
    return received


def assert_is_live(server):
    """Within less time than any wait for a slow client."""
    assert server.get("/health/live", timeout=4).status_code == 200


@pytest.mark.parametrize(
    "data", [b"", b"GET /health/live HTTP/1.1\r\nX-Slow: "], ids=["no", "half"]
)
def test_a_connection_without_a_whole_head_holds_no_thread(small, opened, data):
    """Nine for each thread; gunicorn's own has each wait in one until it gives up."""
    begin = time.monotonic()
    connections = [opened(data) for _ in range(9 * NUM_THREADS)]
    for connection in connections:
        connection.sendall(data[-1:])  # more of it, and not its end
    assert_is_live(small)
    for connection in connections:  # they end without an answer, and all at the same time
        assert connection.recv(1) == b""
    assert time.monotonic() - begin < 10


def test_a_client_that_has_reset_its_connection_is_not_served(small, opened):
    """It did while the server had other things to do: here, nothing at all."""
    worker = worker_of(small)
    os.kill(worker, signal.SIGSTOP)
    try:
        for _ in range(5):
            data = b'{"prompt": "x"}'
            leaver = opened(head(length=len(data)).replace(URL.encode(), b"/left") + data)
            leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            leaver.close()
    finally:
        os.kill(worker, signal.SIGCONT)
    half_closed = opened(b"GET /half-closed HTTP/1.1\r\nHost: localhost\r\n\r\n")
    half_closed.shutdown(socket.SHUT_WR)
    assert read_all(half_closed).startswith(b"HTTP/1.1 404 ")
    assert "begins /half-closed" in small.output
    assert "begins /left" not in small.output


def test_a_head_that_has_begun_must_end_in_time_on_a_kept_connection_too(small, opened):
    connection = opened(
        b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health/live HTTP"
    )
    assert read_head(connection).startswith(b"HTTP/1.1 200 ")
    begin = time.monotonic()
    while connection.recv(65536):  # the rest of that answer, and the end
        pass
    assert time.monotonic() - begin < 4.5  # of 5 that a connection is kept for its next request


def test_requests_that_come_together_or_in_pieces_are_answered_in_their_order(small, opened):
    requests = [
        b"GET /%d HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: %d\r\n\r\n" % (i, i)
        for i in range(9)
    ]
    connection = opened(b"".join(requests[:4]) + requests[4][:-1])
    connection.sendall(requests[4][-1:] + b"".join(requests[5:8]) + requests[8][:20])
    connection.sendall(requests[8][20:-4] + b"\r\nConnection: close\r\n\r\n")
    received = read_all(connection)
    ids = [line for line in received.split(b"\r\n") if line.startswith(b"X-Request-Id: ")]
    assert ids == [b"X-Request-Id: %d" % i for i in range(9)]


def test_a_small_body_that_comes_slowly_holds_no_thread(small, opened):
    slow = [opened(head(length=50) + b"{") for _ in range(3 * NUM_THREADS)]
    for _ in range(2):
        assert_is_live(small)
    assert not select.select(slow, [], [], 0)[0]  # none is refused
    response = small.post(URL, ONE)
    assert response.status_code == 200, response.text
    slow[0].sendall(json.dumps(ONE).ljust(50)[1:].encode())
    assert read_head(slow[0]).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("header", ["Expect: 100-continue", "EXPECT: 100-Continue"])
def test_a_body_that_comes_once_it_is_asked_for_is_asked_for(opened, header):
    """By a request thread: what waits for the body would wait forever."""
    data = json.dumps(ONE).encode()
    connection = opened(head(header, length=len(data)))
    assert read_head(connection) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(data)
    assert read_head(connection).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_nothing_has_read_is_no_part_of_the_next_request(opened):
    unread = b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n" + b"x" * 50
    last = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    received = read_all(opened(unread + unread + last))
    assert re.findall(rb"HTTP/1.1 (\d+) ", received) == [b"404", b"404", b"200"]


def test_bodies_that_come_slowly_leave_threads_for_the_others(small, opened):
    slow, refused = {opened(head(CHUNKED)) for _ in range(MAX_SLOW + 2)}, set()
    while len(refused) < 2:  # whichever come last to their wait
        ready, _, _ = select.select(slow - refused, [], [], 20)
        assert ready
        refused.update(ready)
    assert len(refused) == 2
    slow -= refused
    for connection in refused:
        received = read_all(connection)
        assert received.startswith(b"HTTP/1.1 429 ") and b"Connection: close" in received
        assert b"Retry-After: " in received
    assert_is_live(small)
    response = small.post(URL, ONE)
    assert response.status_code == 200, response.text
    for connection in slow:
        connection.sendall(b"32\r\n%b\r\n0\r\n\r\n" % json.dumps(ONE).ljust(50).encode())
        assert read_head(connection).startswith(b"HTTP/1.1 200 ")


def test_a_slow_body_that_is_refused_before_its_end_leaves_its_place_to_others(small, opened):
    for _ in range(2):
        small.wait_for(lambda: small.get("/v1/status").json()["threads"]["busy"] == 1)
        slow = {opened(head(CHUNKED)) for _ in range(MAX_SLOW + 1)}
        [refused], _, _ = select.select(slow, [], [], 60)  # whichever comes last to its wait
        assert read_all(refused).startswith(b"HTTP/1.1 429 ")
        for connection in slow - {refused}:
            connection.sendall(b"30000\r\n%b" % (b"x" * 100_001))  # more than is taken
            assert read_head(connection).startswith(b"HTTP/1.1 413 ")
            connection.close()


def test_the_last_threads_are_for_health_checks_and_refusals(small, opened):
    slow = [opened(head(CHUNKED)) for _ in range(MAX_SLOW)]
    for _ in range(2):
        assert_is_live(small)
    body = {"prompt": "x", "max_tokens": 300, "stream": True}
    streams = [open_request(small, body) for _ in range(2)]
    for stream in streams:
        assert read_head(stream).startswith(b"HTTP/1.1 200 ")
    response = small.post(URL, ONE)
    assert response.status_code == 429
    assert "request threads that read bodies are busy" in response.json()["error"]["message"]
    assert_is_live(small)
    for connection in [*slow, *streams]:
        connection.close()


def test_a_slow_body_that_nothing_reads_holds_no_thread(small, opened):
    request = head(CHUNKED).replace(b"/v1/completions", b"/no/such/path")
    connections = [opened(request) for _ in range(3 * NUM_THREADS)]
    for connection in connections:
        received = read_head(connection)
        assert received.startswith(b"HTTP/1.1 404 ") and b"Connection: close" in received
    assert_is_live(small)


def test_a_head_beyond_64_kb_is_a_431(small, opened):
    fields = [f"X-{i}: {'x' * 8000}" for i in range(9)]
    assert read_all(opened(head(*fields))).startswith(b"HTTP/1.1 431 ")
    assert read_all(opened(head(*fields)[:-4])).startswith(b"HTTP/1.1 431 ")  # it need not end
    assert read_all(opened(b"GET /" + b"x" * 70000)).startswith(b"HTTP/1.1 414 ")


def test_chunks_of_one_byte_each_are_refused(small, opened):
    data = json.dumps(ONE).ljust(20_000).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in data) + b"0\r\n\r\n"
    received = read_head(opened(head(CHUNKED) + chunks))
    assert received.startswith(b"HTTP/1.1 400 ")
    size = 10
    chunks = b"".join(b"a\r\n%b\r\n" % data[i : i + size] for i in range(0, len(data), size))
    received = read_head(opened(head(CHUNKED) + chunks + b"0\r\n\r\n"))
    assert received.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("path", [URL, "/no/such/path"])
def test_the_refusal_of_a_long_body_is_seen_by_who_sends_it_all_first(small, path, is_chunked):
    """A hundred times as long as allowed, more than sockets' buffers hold."""
    for _ in range(3):
        connection = http.client.HTTPConnection("127.0.0.1", small.port, timeout=60)
        body = iter([b"x" * 65536] * 160) if is_chunked else b"x" * (160 * 65536)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", path, body, headers, encode_chunked=is_chunked)
        response = connection.getresponse()
        assert response.status == (413 if path == URL else 404), response.read()
        assert response.getheader("Connection") == "close"
        told = json.loads(response.read())["error"]["message"]
        assert path != URL or "100000 bytes" in told
        connection.close()


def test_a_client_that_never_stops_sending_is_reset(small, opened):
    connection = opened(head(length=1 << 40))
    with pytest.raises(OSError):  # a reset or a broken pipe
        for _ in range(65536):
            connection.sendall(b"x" * 65536)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_a_body_that_is_cut_off_is_not_taken_for_whole(small, opened, is_chunked):
    data = json.dumps(ONE).encode()
    if is_chunked:
        connection = opened(head(CHUNKED) + b"%x\r\n%b\r\n" % (len(data), data))
    else:
        connection = opened(head(length=len(data) + 10) + data)
    connection.shutdown(socket.SHUT_WR)
    received = read_all(connection)
    assert received.startswith(b"HTTP/1.1 400 ") and b"it ends after" in received
