"""Clients that stop in the middle: of the request that they send, of the answer that they read."""

import contextlib
import socket
import threading
import time

import pytest

from tests.faults.conftest import open_request, read_all, request_bytes
from tests.live.conftest import shared_server

STREAM = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True}


impatient = shared_server(  # with one thread more than it takes jobs
    cache_tokens=65536,
    max_batch_size=16,
    max_pending=0,
    max_websockets=0,
    reserve_threads=1,
    body_timeout=1,
    send_timeout=1,
)


@contextlib.contextmanager
def trickling(connections, data, pause):
    """Sends a byte after the other to each of them, meanwhile."""
    stop = threading.Event()

    def trickle():
        for byte in data:
            if stop.wait(pause):
                return
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.sendall(bytes([byte]))

    thread = threading.Thread(target=trickle)
    thread.start()
    yield
    stop.set()
    thread.join()


def half_a_request(server, kind):
    whole = request_bytes(server, {"prompt": "x" * 100, "max_tokens": 1})
    if kind == "chunked":
        head, _, body = whole.partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if b"Content-Length" not in line]
        head = b"\r\n".join([*lines, b"Transfer-Encoding: chunked"])
        whole = head + b"\r\n\r\n" + b"%x\r\n" % len(body) + body
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    connection.sendall(whole[:-60])
    return connection, whole[-60:]


@pytest.mark.parametrize("kind", ["length", "chunked"])
@pytest.mark.parametrize("pace", ["stops", "trickles"])
def test_a_body_that_does_not_arrive_in_time_is_answered(impatient, kind, pace):
    connection, rest = half_a_request(impatient, kind)
    begin = time.monotonic()
    # 12 seconds, a byte each 0.2.
    with trickling([connection], rest[:-1] if pace == "trickles" else b"", 0.2):
        received = b""
        while not received.endswith(b"}}") and (part := connection.recv(65536)):
            received += part
        seconds = time.monotonic() - begin
    connection.close()
    assert received.startswith(b"HTTP/1.1 408 ") and b'"code":"body_timeout"' in received
    assert seconds < 10  # of 12 that it would trickle


def test_slow_senders_do_not_keep_the_threads(impatient):
    """Twice as many as there are threads; each waits its turn, none forever."""
    opened = [half_a_request(impatient, "length")[0] for _ in range(2 * 17)]
    assert impatient.post("/v1/completions", {"prompt": "x", "max_tokens": 1}).status_code == 200
    for connection in opened:
        connection.close()


def test_a_reader_that_takes_nothing_is_cut_off_and_its_jobs_are_cancelled(impatient):
    stalled = open_request(impatient, {**STREAM, "n": 16}, receive_buffer=4096)
    assert stalled.recv(10) == b"HTTP/1.1 2"

    def refused():
        one = {"prompt": "x", "max_tokens": 1}
        return impatient.post("/v1/completions", one).status_code == 429

    assert refused()
    impatient.wait_for(lambda: not refused(), 30)
    with pytest.raises(ConnectionError):
        read_all(stalled)
    stalled.close()


def test_half_a_head_does_not_keep_a_thread(impatient):
    """As many as there are threads, a byte a second; the server's patience with them is 10 s."""
    opened = [socket.create_connection(("127.0.0.1", impatient.port)) for _ in range(17)]
    for connection in opened:
        connection.sendall(b"GET /health/live HTTP/1.1\r\nX-Slow: ")
    with trickling(opened, b"x" * 1000, 1):
        assert impatient.get("/health/live").status_code == 200
    for connection in opened:
        connection.close()


def test_clients_that_do_not_close_do_not_keep_the_others_waiting(impatient):
    opened = [socket.create_connection(("127.0.0.1", impatient.port)) for _ in range(8)]
    for connection in opened:
        connection.sendall(b"GET /health/live HTTP/1.0\r\n\r\n")
    begin = time.monotonic()
    for connection in opened:
        read_all(connection)  # all of it has come, and we stay
    assert impatient.get("/health/live").status_code == 200
    assert time.monotonic() - begin < 10  # two seconds for each of the eight, one after the other
    for connection in opened:
        connection.close()
