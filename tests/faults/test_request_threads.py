"""What holds a request thread, and what doesn't: heads, bodies and readers as slow as can be."""

import collections
import contextlib
import errno
import http.client
import itertools
import json
import os
import pathlib
import re
import select
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import types

import pytest
import requests
from gunicorn.config import Config

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.server.body import Body
from switchyard.server.connection import Connection
from switchyard.server.request_threads import RequestThreads
from switchyard.server.worker import DISCARD, LINGER, Worker
from tests.faults.conftest import SCRIPTED, open_request, read_all
from tests.faults.test_processes import worker_of
from tests.growth import assert_within
from tests.live.conftest import ROOT, Server

HASTY = [*SCRIPTED[:-1], str(ROOT / "tests" / "faults" / "hasty_conf.py")]
URL = "/v1/completions"
ONE = {"prompt": "x", "max_tokens": 1}
NUM_THREADS, MAX_SLOW = 12, 6
CHUNKED = "Transfer-Encoding: chunked"  # whose body a thread reads


@pytest.fixture(scope="module")
def small(tmp_path_factory, model_path):
    """A server of few threads: four jobs, eight in reserve."""
    server = Server(
        HASTY,
        tmp_path_factory.mktemp("small"),
        model=model_path,
        max_batch_size=4,
        max_pending=0,
        max_websockets=0,
        reserve_threads=8,
        max_body_bytes=100_000,
    )
    yield server.wait_until_ready()
    assert server.stop() == 0, server.output


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
    deadline = time.monotonic() + 60
    while connections_of(small.port):
        assert time.monotonic() < deadline, "the server keeps connections that clients have closed"
        time.sleep(0.01)


def connections_of(port):
    """Sockets at this end that are neither listening nor only remembered."""
    lines = pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
    ours = (line.split()[1:4] for line in lines)
    return sum(
        local.endswith(f":{port:04X}") and state not in ("0A", "06") for local, _, state in ours
    )


def head(*lines, length=None):
    first = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    more = () if length is None else (f"Content-Length: {length}",)
    return "\r\n".join((*first, *more, *lines)).encode() + b"\r\n\r\n"


def read_head(connection):
    received = b""
    while b"\r\n\r\n" not in received and (part := connection.recv(65536)):
        received += part
    return received


def assert_is_live(server):
    """Within less time than any wait for a slow client."""
    assert requests.get(f"{server.url}/health/live", timeout=4).status_code == 200


@pytest.mark.parametrize(
    "data", [b"", b"GET /health/live HTTP/1.1\r\nX-Slow: "], ids=["no", "half"]
)
def test_a_connection_without_a_whole_head_holds_no_thread(small, opened, data):
    """Nine for each thread; gunicorn's own has each wait in one until it gives up."""
    begin = time.monotonic()
    connections = [opened(data) for _ in range(9 * NUM_THREADS)]
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
    """By a request thread: what waits for the body would wait for ever."""
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
    slow = [opened(head(CHUNKED)) for _ in range(MAX_SLOW)]
    for _ in range(2):
        assert_is_live(small)  # by then they have their threads
    for connection in [opened(head(CHUNKED)) for _ in range(2)]:
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
        while requests.get(f"{small.url}/v1/status", timeout=60).json()["threads"]["busy"] > 1:
            time.sleep(0.01)
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
        assert json.loads(response.read())["error"]
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


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("num_late", range(5))
def test_the_end_of_a_head_is_found_wherever_the_network_divides_it(num_late, is_first):
    head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    with make_connection() as connection:
        if not is_first:
            connection.buffer += head
            assert connection.has_request()
            connection.init()
        begin = len(head) - num_late
        connection.buffer += head[:begin]
        assert connection.has_request() == (not num_late)
        connection.buffer += head[begin:]
        assert connection.has_request() and connection.has_head


def test_a_head_that_has_begun_has_its_own_time_and_not_what_is_left_to_begin_in():
    with make_connection(b"GET / HT") as connection:
        connection.wait_for_request(begin_within=5.0, head_within=10.0, body_within=1.0, now=100.0)
        assert connection.deadline == 105.0
        assert connection.receive() and not connection.has_request()
        assert connection.deadline == 110.0


def test_what_comes_byte_by_byte_is_looked_at_once():
    def gather(size):
        with make_connection() as connection:
            for _ in range(size):
                connection.buffer += b"x"
                assert not connection.has_request()

    assert_within(8, lambda: gather(40_000), lambda: gather(10_000))


def test_a_body_that_drips_comes_slowly_once_it_was_waited_for_long_enough_in_all(monkeypatch):
    """However soon each of its bytes comes: here in 0.4 seconds, of one."""
    clock = itertools.count(step=0.4)
    times = types.SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr("switchyard.server.body.time", times)
    with make_connection(b"x") as connection:
        connection.sock = Dripping(connection.sock)
        for _ in range(MAX_SLOW):
            connection.threads.wait(object())
        body = Body(connection, 9)
        assert body.read(3) == b"xxx"
        with pytest.raises(engine.Full, match="bodies arrive slowly"):
            body.read(1)
        assert body.failed


def test_a_body_that_counts_as_slow_may_wait_again_where_no_other_may(monkeypatch):
    monkeypatch.setattr("switchyard.server.body.PATIENCE", 0.0)
    with make_connection() as connection:
        connection.sock = Dripping(connection.sock)
        for _ in range(MAX_SLOW - 1):
            connection.threads.wait(object())
        body = Body(connection, 9)
        assert body.read(3) == b"xxx"
        with pytest.raises(engine.Full):
            connection.threads.wait(object())
        assert body.read(9) == b"xxxxxx"
        connection.threads.wait(object())


def test_many_chunks_take_a_time_in_proportion():
    def read(number):
        with make_connection() as connection:
            connection.buffer += b"a\r\nxxxxxxxxxx\r\n" * number + b"0\r\n\r\n"
            assert len(Body(connection, None).read(10 * number + 1)) == 10 * number

    assert_within(8, lambda: read(64_000), lambda: read(16_000))


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (b"3 ;a=b\r\nabc\r\n0\r\nDigest: x\r\n\r\n", None),
        (b"3\r\nabcd\r\n0\r\n\r\n", "malformed|longer than it says"),
        (b"3\r\nabcde\r\n0\r\n\r\n", "malformed|longer than it says"),
        (b"3\r\nabcd\r\n\r\n0\r\n\r\n", "malformed|longer than it says"),
        (b"3\r\nabc\r\n0\r\nGET / HTTP/1.1\r\n\r\n", "is no trailer"),
    ],
)
def test_chunks_have_the_length_that_they_say_and_trailers_have_names(data, refusal):
    with make_connection() as connection:
        connection.buffer += data
        body = Body(connection, None)
        if refusal is None:
            assert body.read(9) == b"abc" and body.is_over
        else:
            with pytest.raises(BadRequest, match=refusal):
                body.read(9)


def test_the_length_of_the_next_request_is_none_of_this_ones():
    with make_connection() as connection:
        connection.buffer += b"GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 999\r\n\r\n"
        assert connection.has_request()


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


@contextlib.contextmanager
def make_connection(sent=b""):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(sent)
        yield Connection(Config(), ours, "", "", RequestThreads(NUM_THREADS, 4))


class Dripping:
    """A socket, which has something to read, on which each byte is waited for."""

    def __init__(self, sock):
        self.fileno = sock.fileno

    def recv(self, size, flags=0):
        if flags & socket.MSG_DONTWAIT:
            raise BlockingIOError
        return b"x"


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
