"""Clients that stop in the middle of the request that they send, or stay once they have read."""

import contextlib
import socket
import threading
import time

import pytest

from tests.faults.conftest import read_all, request_bytes
from tests.live.conftest import shared_server

# With one thread more than it takes jobs.
FEW = dict(max_batch_size=16, max_pending=0, max_websockets=0, reserve_threads=1)
impatient = shared_server(body_timeout=1, **FEW)


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
    stop = threading.Event()

    def trickle():  # 12 seconds, a byte each 0.2
        with contextlib.suppress(OSError):
            for byte in rest[:-1]:
                if stop.wait(0.2):
                    return
                connection.sendall(bytes([byte]))

    thread = threading.Thread(target=trickle)
    begin = time.monotonic()
    if pace == "trickles":
        thread.start()
    received = b""
    while not received.endswith(b"}}") and (part := connection.recv(65536)):
        received += part
    seconds = time.monotonic() - begin
    stop.set()
    if pace == "trickles":
        thread.join()
    connection.close()
    assert received.startswith(b"HTTP/1.1 408 ") and b'"code":"body_timeout"' in received
    assert seconds < 10  # of 12 that it would trickle


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
