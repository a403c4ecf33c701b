"""The worker's main thread: connections that end, and the ends of the worker itself."""

import io
import os
import select
import signal
import socket
import sys
import threading
import types
from concurrent.futures import Future

import pytest
from gunicorn.workers.gthread import ThreadWorker

from switchyard.server import worker as module
from switchyard.server.worker import _announce, _exit_in
from tests.faults.heads import connection
from tests.faults.test_connections import connect, listener, make_worker

__all__ = ["connect", "connection", "listener", "make_worker"]

HEAD = b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n"


@pytest.fixture
def accepted(make_worker, listener, connect):
    """A worker with one connection, and its client."""
    begun = []
    worker = make_worker(nr_conns=0, worker_connections=10)
    worker.enqueue_req = begun.append
    worker._settings.send_timeout = 7.0
    client = connect()
    worker.accept(listener)
    [connection] = worker._waiting
    yield types.SimpleNamespace(worker=worker, connection=connection, client=client, begun=begun)
    worker._forget(connection)
    connection.close()


def test_what_is_written_to_a_new_connection_has_the_settings_time(accepted):
    limit = accepted.connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
    assert int.from_bytes(limit[:8], sys.byteorder) == 7


def test_whoever_has_its_last_answer_sees_the_end_at_once(accepted):
    worker, connection = accepted.worker, accepted.connection
    worker._forget(connection)
    worker._wait_for_end(connection)
    assert accepted.client.recv(1) == b""
    assert worker._waiting == {connection: worker._on_rest}
    accepted.client.sendall(b"more")
    assert select.select([connection.sock], [], [], 20)[0]
    worker._on_rest(connection, None)
    assert connection in worker._waiting  # it may have more to say
    accepted.client.close()
    assert select.select([connection.sock], [], [], 20)[0]
    worker._on_rest(connection, None)
    assert (worker.nr_conns, worker._waiting) == (0, {}) and connection.sock.fileno() < 0


@pytest.mark.parametrize(
    ("sent", "is_begun"),
    [(b"", False), (HEAD[:9], False), (HEAD + b"half", True), (HEAD + b"123456789", True)],
    ids=["nothing", "half a head", "half a body", "all"],
)
def test_of_what_is_cut_off_a_request_with_a_whole_head_is_answered(accepted, sent, is_begun):
    worker, connection = accepted.worker, accepted.connection
    accepted.client.sendall(sent)
    accepted.client.shutdown(socket.SHUT_WR)
    while connection in worker._waiting:
        assert select.select([connection.sock], [], [], 20)[0]
        worker._on_request(connection, None)
    assert accepted.begun == ([connection] if is_begun else [])
    assert worker.nr_conns == is_begun and (connection.sock.fileno() < 0) != is_begun


class Broken:
    """A socket whose client has reset it."""

    def __init__(self, sock):
        self.fileno, self.close = sock.fileno, sock.close

    def fail(self, *_):
        raise ConnectionResetError

    recv = recv_into = shutdown = setblocking = fail


@pytest.mark.parametrize("where", ["_on_request", "_on_rest", "_wait_for_end", "_wait_for_request"])
def test_a_connection_that_breaks_is_closed_and_counts_no_more(make_worker, where, connection):
    worker = make_worker(nr_conns=1)
    connection.sock = Broken(connection.sock)
    if where.startswith("_on"):
        worker._wait(connection, getattr(worker, where))
    rest = {"_wait_for_end": (), "_wait_for_request": (5.0,)}.get(where, (None,))
    getattr(worker, where)(connection, *rest)
    assert (worker.nr_conns, worker._waiting) == (0, {}) and not worker.poller.get_map()
    assert connection.sock.fileno() < 0


def test_a_request_thread_counts_as_busy_while_it_serves(make_worker, monkeypatch, connection):
    worker = make_worker(_request=threading.local())
    busy = []

    def serve(self, connection):
        busy.append((self._threads.num_busy, self._request.connection))
        return True

    monkeypatch.setattr(ThreadWorker, "handle", serve)
    assert worker.handle(connection) is True
    assert busy == [(1, connection)]
    assert (worker._threads.num_busy, worker._request.connection) == (0, None)


def test_a_detached_connection_is_not_touched_until_its_stream_ends(make_worker, connection):
    later, served = [], Future()
    served.set_result(False)
    queue = types.SimpleNamespace(defer=lambda call, *rest: later.append((call, rest)))
    worker = make_worker(nr_conns=1, _request=threading.local(), method_queue=queue)
    worker._request.connection = connection
    end = worker._detach()
    worker.finish_request(connection, served)
    assert not worker._waiting and not later
    end()
    [(call, rest)] = later
    call(*rest)
    assert worker._waiting == {connection: worker._on_rest}


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_worker_that_has_not_loaded_ends_at_once(make_worker, is_loaded):
    drains = []
    worker = make_worker(
        method_queue=types.SimpleNamespace(defer=lambda callback: None),
        _shall_drain=types.SimpleNamespace(put=drains.append),
        **({"wsgi": object()} if is_loaded else {}),
    )
    worker.handle_exit(signal.SIGTERM, None)
    assert (worker.alive, len(drains)) == (is_loaded, is_loaded)


def test_the_bound_of_an_end_ends_the_process_with_its_status(monkeypatch):
    did = []
    monkeypatch.setattr(os, "_exit", lambda status: did.append(("exit", status)))
    times = types.SimpleNamespace(sleep=lambda seconds: did.append(("sleep", seconds)))
    monkeypatch.setattr(module, "time", times)
    _exit_in(2.5)
    _exit_in(3.5, 70)
    assert did == [("sleep", 2.5), ("exit", 0), ("sleep", 3.5), ("exit", 70)]


class BrokenPipe(io.StringIO):
    def write(self, text):
        raise BrokenPipeError

    flush = write


@pytest.mark.parametrize("stream", [io.StringIO(), BrokenPipe()], ids=["closed", "broken"])
def test_an_end_that_nobody_can_be_told_of_goes_on(monkeypatch, stream):
    if not isinstance(stream, BrokenPipe):
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    jobs = [types.SimpleNamespace(request_id="a")]
    model = types.SimpleNamespace(jobs=lambda timeout: jobs)
    settings = types.SimpleNamespace(grace=2.5, log_format="text")
    _announce(types.SimpleNamespace(engines=[model]), settings)


@pytest.mark.parametrize(
    ("sent", "closes"),
    [
        (b"GET / HTTP/1.1\r\nOrigin: http://a\r\n\r\n", False),
        (b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n", False),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", False),
        (b"POST / HTTP/1.1\r\nOrigin: http://a\r\nContent-Length: 0\r\n\r\n", True),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999\r\n\r\nx", True),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", True),
        (b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n", True),
        (b"GET / HTTP/1.0\r\n\r\n", True),
    ],
)
def test_a_connection_is_closed_behind_an_answer_whose_next_request_may_be_far(
    connection, sent, closes
):
    connection.buffer += sent
    connection.has_request()
    connection.init()
    assert next(connection.parser).should_close() is closes
    connection.close()
