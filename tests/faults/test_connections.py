"""Connections that the worker accepts, keeps, and gives up for others."""

import collections
import contextlib
import errno
import itertools
import logging
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
import types
from concurrent.futures import Future

import pytest
from gunicorn.config import Config
from gunicorn.workers.gthread import TConn, ThreadWorker

from switchyard.app.services import KEY
from switchyard.server import worker as module
from switchyard.server.body import Body
from switchyard.server.connection import Connection
from switchyard.server.threads.entrance import Entrance
from switchyard.server.threads.request_threads import RequestThreads
from switchyard.server.threads.thread_pool import RequestPool
from switchyard.server.worker import DISCARD, HEAD_TIMEOUT, LAST_WRITES, LINGER, RELEASE, Worker
from tests.faults.heads import NUM_THREADS, connection, make_connection
from tests.scripted import Panic

__all__ = ["connection"]


@pytest.fixture
def make_worker():
    """With what its main thread needs, and without a server."""
    workers = []

    def make(**attributes):
        worker = object.__new__(Worker)
        worker._waste = bytearray(9)
        worker.cfg, worker._threads = Config(), RequestThreads(NUM_THREADS, 4)
        worker.keepalived_conns, worker.poller = collections.deque(), selectors.DefaultSelector()
        worker._waiting, worker._next_look, worker.alive, worker._is_plain = {}, 0.0, True, True
        rest = worker._turn_away, 100, Connection.has_left, worker._close_later
        worker._entrance = Entrance(lambda one: worker.enqueue_req(one), *rest)
        worker._settings = types.SimpleNamespace(send_timeout=1.0, body_timeout=1.0)
        vars(worker).update(attributes)
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.murder_keepalived(force=True)
        assert not worker._waiting
        worker.poller.close()


HALF = b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf"


@pytest.mark.parametrize(
    ("sent", "force", "is_begun", "is_late"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", False, True, False),  # the server was late to look
        (b"GET / HT", False, False, False),
        (HALF, False, True, True),  # is answered, and known as late
        (HALF, True, False, False),  # the end begins no request that is not whole
    ],
)
def test_at_a_deadline_what_is_there_is_served(make_worker, sent, force, is_begun, is_late):
    begun = []
    worker = make_worker(nr_conns=1, enqueue_req=begun.append)
    with make_connection(sent) as connection:
        connection.wait_for_request(0.0, 0.0, 0.0, time.monotonic())
        worker._wait(connection, worker._on_request)
        worker.murder_keepalived(force)
        assert begun == [connection] * is_begun and connection.is_late == is_late
        assert not worker._waiting and (connection.sock.fileno() < 0) != is_begun


def test_who_has_sent_more_than_was_read_may_take_longer_to_close(make_worker, monkeypatch):
    """Until all has come and gone, or a reset would overtake the answer."""
    worker = make_worker(nr_conns=2)
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: 100.0))
    with make_connection() as is_read, make_connection() as is_not:
        is_not.body = Body(is_not, 9)
        for connection in (is_read, is_not):
            worker._wait_for_end(connection)
        assert (is_read.deadline, is_not.deadline) == (100.0 + LINGER, 100.0 + DISCARD)
        worker.murder_keepalived(force=True)


def test_a_worker_that_ends_waits_no_longer_for_any_connection(make_worker):
    worker = make_worker(nr_conns=2)
    with make_connection() as soon, make_connection() as late:
        for connection, within in ((soon, 100.0), (late, 300.0)):
            connection.wait_for_request(within, within, within, 0.0)
            worker._wait(connection, worker._on_request)
        worker._cap_keepalive(200.0)
        assert (soon.deadline, late.deadline) == (100.0, 200.0)
        worker.murder_keepalived(force=True)


def test_a_connection_that_no_thread_can_take_is_closed_and_counts_no_more(make_worker, connection):
    pool = RequestPool(1)
    pool.shutdown()
    worker = make_worker(nr_conns=1, tpool=pool, log=logging.getLogger("worker"))
    worker.enqueue_req(connection)
    assert worker.nr_conns == 0 and connection.sock.fileno() < 0


def test_a_wake_up_without_data_closes_no_connection(make_worker, connection):
    worker = make_worker(nr_conns=1)
    connection.sock.setblocking(False)
    for on_readable in (worker._on_request, worker._on_rest):
        worker._wait(connection, on_readable)
        on_readable(connection, None)
        assert connection in worker._waiting
        worker._forget(connection)


def test_deadlines_are_looked_at_once_a_second_and_each_turn_at_the_end(make_worker):
    for alive, force, is_closed in ((True, False, False), (False, False, True), (True, True, True)):
        worker = make_worker(nr_conns=1, alive=alive)
        with make_connection() as connection:
            worker._next_look = time.monotonic() + 1000.0
            worker._wait(connection, worker._on_request)
            worker.murder_keepalived(force)
            assert (connection not in worker._waiting) == is_closed
            worker.murder_keepalived(force=True)


def test_each_wait_for_a_request_has_its_own_time(make_worker, monkeypatch):
    """The first on a connection, a later one, and any on a worker that ends."""
    monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: 100.0))
    kept, is_served = Config(), Future()
    kept.set("keepalive", 7)
    is_served.set_result(True)
    for alive, first, later, body in ((True, HEAD_TIMEOUT, 7, 1.0), (False, *[LINGER] * 3)):
        worker = make_worker(nr_conns=2, cfg=kept, alive=alive)
        with make_connection() as new, make_connection() as old:
            worker._wait_for_request(new, HEAD_TIMEOUT)
            worker.finish_request(old, is_served)
            assert [one.deadline - 100.0 for one in (new, old)] == [first, later]
            assert {one.body_within for one in (new, old)} == {body}
            worker.murder_keepalived(force=True)


def test_a_request_that_came_with_the_last_is_served_at_once(make_worker, connection):
    begun = []
    worker = make_worker(nr_conns=1, enqueue_req=begun.append)
    connection.buffer += b"GET / HTTP/1.1\r\n\r\n"
    worker._wait_for_request(connection, 7)
    assert begun == [connection] and not worker._waiting


@pytest.mark.parametrize("end", [Future.cancel, lambda served: served.set_result(False)])
def test_a_connection_is_not_kept_unless_its_request_was_served(make_worker, end, connection):
    worker = make_worker(nr_conns=1)
    served = Future()
    end(served)
    worker.finish_request(connection, served)
    assert worker._waiting == {connection: worker._on_rest}


def test_a_connection_is_kept_where_both_sides_may_and_no_body_is_left(make_worker, connection):
    worker = make_worker()
    assert worker._keepalive_after(connection, True) is False
    for length, keepalive, is_kept in ((0, 5, True), (0, 0, False), (9, 5, False)):
        connection.body = Body(connection, length)
        connection.sock.setblocking(False)
        assert worker._keepalive_after(connection, keepalive) is is_kept


@pytest.fixture
def handled(make_worker, monkeypatch):
    """What a request thread, which has answered before, makes of gunicorn's `handle`."""
    told = []

    def handle(serve, conn):
        worker = make_worker(_request=threading.local(), handle_error=lambda *a: told.append(a))
        worker.log = logging.getLogger("worker")
        worker.note_answer(types.SimpleNamespace(headers_sent=True, status_code=200))
        monkeypatch.setattr(ThreadWorker, "handle", lambda self, conn: serve(self))
        return worker.handle(conn), len(told)

    return handle


def test_a_panic_is_answered_unless_its_own_answer_has_begun(handled, connection):
    def panic(worker):
        raise Panic

    def panic_amid_an_answer(worker):
        worker.note_answer(types.SimpleNamespace(headers_sent=True, status_code=200))
        raise Panic

    assert handled(panic, connection) == (False, 1)
    assert handled(panic_amid_an_answer, connection) == (False, 1)


def test_what_gunicorn_closes_is_not_waited_for(handled):
    for keep in (True, False):
        with make_connection() as connection:
            tls = TConn(Config(), connection.sock, "", "")
            assert handled(lambda worker, keep=keep: keep, tls) == (keep, 0)
            connection.sock.setblocking(False)
            with pytest.raises(BlockingIOError) if keep else contextlib.nullcontext():
                assert connection.sock.recv(1) == b""


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_after_want_of_room_a_worker_does_not_accept_for_a_while(
    make_worker, listener, caplog, number
):
    worker = make_worker(nr_conns=0, sockets=[listener], log=logging.getLogger())
    worker._accepting, worker._accept_from = False, 0.0
    worker.set_accept_enabled(True)
    worker.accept(failing_listener(number))
    for _ in range(2):
        assert not worker._accepting and not worker.poller.get_map()
        worker.set_accept_enabled(True)
    worker._accept_from = 0.0
    worker.set_accept_enabled(True)
    assert worker._accepting and len(caplog.messages) == 1


@pytest.fixture
def exits(monkeypatch):
    """The bounds of the process's end, with their exit statuses."""
    said = queue.SimpleQueue()
    monkeypatch.setattr(module, "_exit_in", lambda *said_: said.put(said_))
    return said


def test_every_end_of_a_worker_has_a_bound(make_worker, exits):
    method_queue = types.SimpleNamespace(defer=lambda callback: None)
    worker = make_worker(tpool=RequestPool(1), method_queue=method_queue)
    worker.make_room(70)
    assert not worker.alive and exits.get(timeout=20) == (LAST_WRITES, 70)
    with pytest.raises(SystemExit):
        worker.handle_quit(signal.SIGQUIT, None)
    assert exits.get(timeout=20) == (LAST_WRITES,)


@pytest.mark.parametrize(("grace", "left"), [(0.0, LAST_WRITES), (9000.0, 9000.0)])
def test_a_drain_gives_jobs_the_grace_and_readers_what_is_left_of_it(
    make_worker, exits, grace, left
):
    closed = []
    models = types.SimpleNamespace(
        engines=[], close=lambda **times: closed.append((times, worker.alive))
    )
    settings = types.SimpleNamespace(grace=grace, log_format="text")
    services = types.SimpleNamespace(models=models, settings=settings)
    worker = make_worker(
        wsgi=types.SimpleNamespace(extensions={KEY: services}),
        method_queue=types.SimpleNamespace(defer=lambda callback: None),
        _shall_drain=queue.SimpleQueue(),
    )
    worker._shall_drain.put(None)
    worker._drain()
    [seconds] = exits.get_nowait()
    assert closed == [({"drain": grace, "timeout": RELEASE}, True)]  # refusals until then
    assert not worker.alive
    assert 0.9 * left < seconds <= left


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        yield listener


@pytest.fixture
def connect(listener):
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(
            socket.create_connection(listener.getsockname(), timeout=20)
        )


def test_the_connection_that_has_waited_longest_makes_room(make_worker, listener, connect):
    worker = make_worker(nr_conns=7, worker_connections=10)
    clients = []
    for expected in (8, 9, 9, 9):  # a place is kept free for the next
        clients.append(connect())
        worker.accept(listener)
        assert worker.nr_conns == expected
    left = [connection.client for connection in worker._waiting]
    assert left == [client.getsockname() for client in clients[2:]]
    assert clients[0].recv(1) == clients[1].recv(1) == b""


def test_what_is_being_served_makes_no_room(make_worker, listener, connect):
    worker = make_worker(nr_conns=9, worker_connections=10)
    newcomer = connect()
    worker.accept(listener)
    assert [connection.client for connection in worker._waiting] == [newcomer.getsockname()]
    assert worker.nr_conns == 10


def test_a_request_that_has_arrived_is_served_and_makes_no_room(make_worker, listener, connect):
    begun = []
    worker = make_worker(nr_conns=7, worker_connections=10, enqueue_req=begun.append)
    late, early, gone, silent = (connect() for _ in range(4))
    early.sendall(b"GET / HTTP/1.1\r\n\r\n")
    gone.sendall(b"GET / HTTP/1.1\r\n\r\n")
    gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    gone.close()  # resets the connection, which takes no room
    worker._accept_one(listener)
    late.sendall(b"GET / HTTP/1.1\r\n\r\n")  # the poller has not reported it
    worker.accept(listener)
    addresses = [early.getsockname(), late.getsockname()]
    assert [connection.client for connection in begun] == addresses and worker.nr_conns == 10
    assert [connection.client for connection in worker._waiting] == [silent.getsockname()]
    for one in begun:
        one.close()


@pytest.mark.parametrize("number", [errno.ECONNABORTED, errno.EAGAIN])
def test_a_client_that_has_left_before_it_was_accepted_is_no_fault(make_worker, number):
    worker = make_worker(nr_conns=0, worker_connections=10)
    worker.accept(failing_listener(number))
    assert worker.nr_conns == 0 and not worker._waiting
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        worker.accept(failing_listener(errno.EBADF))


def failing_listener(number):
    def accept():
        raise OSError(number, os.strerror(number))

    return types.SimpleNamespace(accept=accept)


def test_a_signal_while_another_is_handled_holds_nothing_up(make_worker):
    """As a terminal's SIGINT, and the master's SIGTERM at any step of it."""
    made = Worker(0, 0, [], None, 1, Config(), None)
    drains = []
    for step in itertools.count():
        worker = make_worker(wsgi=object(), _shall_drain=made._shall_drain)
        steps = itertools.count()

        def trace(frame, event, arg, worker=worker, steps=steps, step=step):
            if event == "line" and next(steps) == step:
                sys.settrace(None)
                worker.handle_exit(signal.SIGTERM, None)
                drains.append(step)
            return trace

        def handle(worker=worker, trace=trace):
            sys.settrace(trace)
            worker.handle_exit(signal.SIGINT, None)
            sys.settrace(None)

        thread = threading.Thread(target=handle, daemon=True)
        thread.start()
        thread.join(10)
        assert not thread.is_alive(), f"at step {step}"
        if len(drains) <= step:
            break
    made.tmp.close()
    assert drains
