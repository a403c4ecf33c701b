"""Every way in which a client fails its request, at every point of the request's life.

A server with `SETTINGS` under `SLOWED`, on its own. Its cache is eight pages.
"""

import contextlib
import random
import socket
import struct
import subprocess
import sys
import time

from tests.faults.conftest import open_request, read_all, request_bytes

PHASES = ("queued", "prefill", "decode", "finishing")
WAYS = ("close", "reset", "half-close", "stall", "kill -9")
SEND_TIMEOUT = 1.0
SETTINGS = {
    "cache_tokens": 2048,
    "max_batch_size": 2,
    "max_chunk_size": 256,
    "heartbeat": 600,  # the finding must not depend on it
    "send_timeout": SEND_TIMEOUT,
}
CANCELLED, SERVED, ENDED, CUT_OFF = "cancelled", "served", "ended by itself", "cut off"

PACE = 200_020  # milliseconds an iteration: 200 during the prompt, 20 while tokens come
# A client's process, to be killed.
CLIENT = """
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(bytes.fromhex(sys.argv[2]))
print(flush=True)
time.sleep(600)
"""


def expected(phase, streams, way):
    """What becomes of the job, and within how many seconds."""
    if phase == "finishing":
        return ENDED, 1
    if way == "half-close" and streams:
        return SERVED, 30
    if way == "stall":
        # A client that doesn't read is as good as any until something is sent to it. Without
        # streaming that is the whole answer, which fits the socket.
        return (CUT_OFF, SEND_TIMEOUT + 6) if streams else (ENDED, 30)
    return CANCELLED, 1


def run(server, phase, streams, way, patience=0):
    """Seconds until the request was gone from the server. Raises AssertionError if they are more
    than expected and `patience`.
    """
    what, bound = expected(phase, streams, way)
    bound += patience
    with contextlib.ExitStack() as stack:
        blocker = None
        if phase == "queued":
            blocker = stack.enter_context(Request(server, max_tokens=2000, n=2))  # both places
            blocker.wait_for(lambda row: row["completion_tokens"])
        request = stack.enter_context(
            Request(
                server,
                prompt=new_prompt(1500) if phase == "prefill" else [1, 2, 3],
                max_tokens=50 if what in (SERVED, ENDED) else 500,
                stream=streams,
                other=blocker,
                is_process=way == "kill -9",
            )
        )
        reached = {
            "queued": lambda row: row["state"] == "pending",
            "prefill": lambda row: row["state"] == "prefill",
            "decode": lambda row: row["completion_tokens"] > 2,
            "finishing": lambda row: row["completion_tokens"],
        }
        request.wait_for(reached[phase])
        if phase == "finishing":
            request.wait_until_gone(30)
        request.fail(way)
        if blocker is not None and what != CANCELLED:
            with Request(server, max_tokens=500):  # one that leaves is noticed by then
                server.wait_for(lambda: len(server.rows()) == 4)
            server.wait_for(lambda: len(server.rows()) < 4)
            assert request.row() is not None, "it should still wait"
            blocker.fail("close")
        begin = time.monotonic()
        if what == SERVED:  # read at once, or it is cut off as one that doesn't
            assert b"data: [DONE]" in request.read()
        request.wait_until_gone(bound)
        seconds = time.monotonic() - begin
        assert seconds <= bound, f"{seconds:.2f} s"
        if what == CUT_OFF:
            with contextlib.suppress(ConnectionError):
                assert b"[DONE]" not in request.read()
        if blocker is not None and what == CANCELLED:
            assert len(server.rows()) == 2  # the blocker's
            blocker.fail("close")
    if blocker is not None:
        assert blocker.wait_until_gone(20) < 20  # of 40
    assert_all_is_free(server)
    return seconds


class Request:
    """One from its own client. `other`: one that runs already."""

    def __init__(self, server, other=None, is_process=False, **body):
        self._server = server
        self._other = other
        body = {"prompt": [1, 2, 3], "ignore_eos": True, "stream": True, "seed": PACE, **body}
        if is_process:
            data = request_bytes(server, body, headers=["Connection: close"]).hex()
            command = [sys.executable, "-c", CLIENT, str(server.port), data]
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
            self._process.stdout.readline()
        else:
            self._process = None
            self._connection = open_request(
                server, body, headers=["Connection: close"], receive_buffer=4096
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process is None:
            self._connection.close()
        else:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def row(self):
        """What the server says of it; None when it has ended."""
        known = self._other._identifier if self._other else None
        rows = [row for row in self._server.rows() if row["id"] != known]
        if rows:
            self._identifier = rows[0]["id"]
        return rows[0] if rows else None

    def wait_for(self, is_so):
        self._server.wait_for(lambda: (row := self.row()) and is_so(row), 30)

    def wait_until_gone(self, timeout):
        """Seconds until then."""
        begin = time.monotonic()
        while self.row() is not None and time.monotonic() < begin + timeout + 5:
            time.sleep(0.01)
        return time.monotonic() - begin

    def fail(self, way):
        if way == "kill -9":
            self._process.kill()
        elif way == "half-close":
            with contextlib.suppress(OSError):  # what has ended unread may be cut off already
                self._connection.shutdown(socket.SHUT_WR)
        elif way != "stall":  # nothing has been read anyway
            if way == "reset":
                reset = struct.pack("ii", 1, 0)
                self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            self._connection.close()

    def read(self):
        return read_all(self._connection)


def new_prompt(length):
    """One whose beginning no earlier request has left in the cache."""
    return [random.randrange(1, 2000) for _ in range(length)]


def assert_all_is_free(server):
    """A request that needs every page of the cache starts."""
    with Request(server, prompt=new_prompt(1900), max_tokens=140, seed=0) as whole:
        whole.wait_for(lambda row: row["pages"] == 8 and row["completion_tokens"])
    whole.wait_until_gone(20)
