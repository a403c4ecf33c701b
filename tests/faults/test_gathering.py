"""Heads and bodies as they are gathered, piece by piece."""

import itertools
import socket
import struct
import threading
import types

import pytest

from switchyard import engine
from switchyard.app.exceptions import BadRequest, BodyTimeout
from switchyard.server.body import Body
from tests.faults.heads import MAX_SLOW, NUM_THREADS, connection, head, make_connection
from tests.growth import assert_within

__all__ = ["connection"]


def hold(take, number):
    for _ in range(number):
        take(object())


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("num_late", range(5))
def test_the_end_of_a_head_is_found_wherever_the_network_divides_it(num_late, is_first, connection):
    head = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
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
        hold(connection.threads.wait, MAX_SLOW)
        body = Body(connection, 9)
        assert body.read(3) == b"xxx"
        with pytest.raises(engine.Full, match="bodies are arriving slowly"):
            body.read(1)
        assert body.failed


def test_a_body_that_counts_as_slow_may_wait_again_where_no_other_may(monkeypatch, connection):
    monkeypatch.setattr("switchyard.server.body.PATIENCE", 0.0)
    connection.sock = Dripping(connection.sock)
    hold(connection.threads.wait, MAX_SLOW - 1)
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


NO_SIZES = (b"", b"3 ", b" 3", b"+3", b"0x3", b"3_0", b"-3", b"\x0b3;a", b"3\x0b;a", b";a")


@pytest.mark.parametrize(
    ("data", "refusal"),
    [
        (b"3 ;a=b\r\nabc\r\n0\r\nDigest: x\r\n\r\n", None),
        (b"3\r\nabcd\r\n0\r\n\r\n", "malformed|longer than its stated"),
        (b"3\r\nabcde\r\n0\r\n\r\n", "malformed|longer than its stated"),
        (b"3\r\nabcd\r\n\r\n0\r\n\r\n", "malformed|longer than its stated"),
        (b"3\r\nabc\r\n0\r\nGET / HTTP/1.1\r\n\r\n", "is not a trailer"),
        (b"3;\x01\r\nabc\r\n0\r\n\r\n", "is not a chunk size"),
        *((size + b"\r\nabc\r\n0\r\n\r\n", "is not a chunk size") for size in NO_SIZES),
    ],
)
def test_chunks_have_the_length_that_they_say_and_trailers_have_names(data, refusal, connection):
    connection.buffer += data
    body = Body(connection, None)
    if refusal is None:
        assert body.read(9) == b"abc" and body.is_over
    else:
        with pytest.raises(BadRequest, match=refusal) as caught:
            body.read(9)
        assert (caught.value.param, caught.value.code) == (None, "invalid_body")


class Bytewise:
    """A socket from which one byte comes at a time."""

    def __init__(self, data):
        self.data = iter(data)

    def recv(self, size, flags=0):
        return bytes([next(self.data)])


def test_chunks_are_found_wherever_the_network_divides_them(connection):
    connection.sock = Bytewise(b"3;a=b\r\nabc\r\nA\r\n0123456789\r\n0\r\nA: b\r\n\r\nGET")
    body = Body(connection, None)
    assert body.read(99) == b"abc0123456789"
    assert body.is_over and body.skip() and bytes(connection.sock.data) == b"GET"


@pytest.mark.parametrize("length", [3, None])
def test_a_body_ends_before_the_next_request(length, connection):
    data = b"abc" if length else b"3\r\nabc\r\n0\r\n\r\n"
    connection.buffer += data + b"GET / HTTP/1.1\r\n\r\n"
    body = Body(connection, length)
    assert body.read(99) == b"abc" and body.read(99) == b""
    assert body.skip() and connection.buffer == b"GET / HTTP/1.1\r\n\r\n"


def test_a_body_that_has_begun_is_read_to_its_end_though_all_threads_are_busy(connection):
    connection.buffer += b"abc"
    body = Body(connection, 3)
    assert body.read(1) == b"a"
    hold(connection.threads.enter, NUM_THREADS)
    assert body.read(2) == b"bc"


def test_the_length_of_the_next_request_is_none_of_this_ones(connection):
    connection.buffer += b"GET / HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\nContent-Length: 999\r\n\r\n"
    assert connection.has_request()


def test_a_body_that_comes_soon_is_not_slow(connection, ends):
    connection.sock = ends[0]
    hold(connection.threads.wait, MAX_SLOW)
    timer = threading.Timer(0.05, ends[1].sendall, [b"xyz"])
    timer.start()
    assert Body(connection, 3).read(3) == b"xyz"
    timer.join()


def test_an_empty_body_can_be_read_though_all_threads_are_busy(connection):
    hold(connection.threads.enter, NUM_THREADS)
    assert Body(connection, 0).read(1) == b""
    with pytest.raises(engine.Full):
        Body(connection, 1).read(1)


def test_the_refusal_of_a_late_body_tells_its_time(connection):
    connection.is_late, connection.body_within = True, 2.5
    with pytest.raises(BodyTimeout, match=r"within 2\.5 seconds"):
        Body(connection, 1).read(1)


def test_an_unread_body_that_has_not_arrived_is_not_awaited(connection):
    connection.sock = Dripping(connection.sock)
    assert not Body(connection, 1).skip()


@pytest.mark.parametrize(("length", "is_awaited"), [(65536, True), (65537, False)])
def test_a_body_of_64_kb_is_the_largest_that_holds_no_thread(length, is_awaited, connection):
    connection.wait_for_request(begin_within=5.0, head_within=10.0, body_within=1.0, now=100.0)
    connection.buffer += head(length=length)
    assert connection.has_request() != is_awaited


def test_a_write_may_take_a_fraction_of_a_second(connection):
    connection.limit_sends(1.5)
    limit = connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
    seconds, microseconds = struct.unpack("ll", limit)
    assert seconds == 1 and 0.49e6 < microseconds < 0.51e6


def test_a_closed_connection_keeps_no_parser_and_no_body(connection):
    """They refer to it, and the garbage would wait for a collection."""
    connection.buffer += b"GET / HTTP/1.1\r\n\r\n"
    assert connection.has_request()
    connection.init()
    connection.body = Body(connection, 0)
    connection.close()
    assert connection.parser is None and connection.body is None


class Dripping:
    """A socket, which has something to read, on which each byte is waited for."""

    def __init__(self, sock):
        self.fileno = sock.fileno

    def recv(self, size, flags=0):
        if flags & socket.MSG_DONTWAIT:
            raise BlockingIOError
        return b"x"
