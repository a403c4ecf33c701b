"""Connections that the worker accepts, keeps, and gives up for others."""

import collections
import contextlib
import errno
import itertools
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
import types

import pytest
from gunicorn.config import Config

from switchyard.server.body import Body
from switchyard.server.request_threads import RequestThreads
from switchyard.server.thread_pool import RequestPool
from switchyard.server.worker import DISCARD, LINGER, Worker, _announce
from tests.faults.heads import NUM_THREADS, make_connection


@pytest.fixture
def make_worker():
    """With what its main thread needs, and without a server."""
    workers = []

    def make(**attributes):
        worker = object.__new__(Worker)
        worker.cfg, worker._threads = Config(), RequestThreads(NUM_THREADS, 4)
        worker.keepalived_conns, worker.poller = collections.deque(), selectors.DefaultSelector()
        worker._waiting, worker._next_look, worker.alive, worker._is_plain = {}, 0.0, True, True
        worker._settings = types.SimpleNamespace(send_timeout=1.0, body_timeout=1.0)
        vars(worker).update(attributes)
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.murder_keepalived(force=True)
        assert not worker._waiting
        worker.poller.close()


def test_a_request_that_is_there_is_served_though_the_server_was_late_to_look(make_worker):
    """As after a pause of the whole machine, longer than heads may take."""
    begun = []
    worker = make_worker(nr_conns=2, enqueue_req=begun.append)
    with make_connection(b"GET / HTTP/1.1\r\n\r\n") as whole, make_connection(b"GET / HT") as half:
        for connection in (whole, half):
            connection.wait_for_request(0.0, 0.0, 0.0, time.monotonic())
            worker._wait(connection, worker._on_request)
        worker.murder_keepalived()
        assert begun == [whole]
        assert not worker._waiting and half.sock.fileno() < 0


def test_who_has_sent_more_than_was_read_may_take_longer_to_close(make_worker, monkeypatch):
    """Until all has come and gone, or a reset would overtake the answer."""
    worker = make_worker(nr_conns=2, _waste=bytearray(1))
    times = types.SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr("switchyard.server.worker.time", times)
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


def test_a_connection_that_no_thread_can_take_is_closed_and_counts_no_more(make_worker):
    pool = RequestPool(1)
    pool.shutdown()
    worker = make_worker(nr_conns=1, tpool=pool, log=logging.getLogger("worker"))
    with make_connection() as connection:
        worker.enqueue_req(connection)
        assert worker.nr_conns == 0 and connection.sock.fileno() < 0


def test_the_end_begins_no_request_that_is_not_whole(make_worker):
    begun = []
    worker = make_worker(nr_conns=1, enqueue_req=begun.append)
    sent = b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhalf"
    with make_connection(sent) as connection:
        connection.wait_for_request(9.0, 9.0, 9.0, time.monotonic())
        worker._wait(connection, worker._on_request)
        worker.murder_keepalived(force=True)
        assert begun == [] and connection.sock.fileno() < 0


def test_a_wake_up_without_data_closes_no_connection(make_worker):
    worker = make_worker(nr_conns=1, _waste=bytearray(1))
    with make_connection() as connection:
        connection.sock.setblocking(False)
        for on_readable in (worker._on_request, worker._on_rest):
            worker._wait(connection, on_readable)
            on_readable(connection, None)
            assert connection in worker._waiting
            worker._forget(connection)


def test_the_end_tells_how_many_requests_it_waits_for(capsys):
    settings = types.SimpleNamespace(grace=2.5, log_format="text")
    for identifiers, told in (("", ""), ("aa", "1 request"), ("aab", "2 requests")):
        jobs = [types.SimpleNamespace(request_id=one) for one in identifiers]
        model = types.SimpleNamespace(jobs=lambda timeout, jobs=jobs: jobs)
        _announce(types.SimpleNamespace(engines=[model]), settings)
        again = "a second Ctrl-C or SIGTERM ends it now"
        line = f"switchyard: finishing {told}, 2.5 s at most; {again}\n"
        assert capsys.readouterr().out == (line if told else "")


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
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
