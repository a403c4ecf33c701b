"""A client's connection. The connection waits on the worker's poller until a request's headers and
a small body are complete, and again after the last response. With gunicorn's own worker, it would
occupy a request thread meanwhile.
"""

import re
import select
import socket
import struct
import time
from typing import Any

from gunicorn.http.errors import LimitRequestHeaders, LimitRequestLine
from gunicorn.http.message import Request
from gunicorn.http.parser import RequestParser
from gunicorn.http.unreader import SocketUnreader
from gunicorn.workers.gthread import TConn

from switchyard.server.body import Body
from switchyard.server.threads.request_threads import RequestThreads

MAX_HEAD = 65536  # bytes of a request's line and headers
MAX_SMALL = 65536  # bytes of a body that is awaited on the poller
RECEIVE = 16384  # bytes of one read
MAX_DISCARDED = 64 << 20  # bytes that are received and dropped after an answer

# The end of a head, or a bare line feed, which gunicorn's parser refuses.
_END = re.compile(rb"\r\n\r\n|(?<!\r)\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,5})[ \t]*\r\n", re.IGNORECASE)
# Headers of requests whose body has no known length, or waits for a 100 Continue.
_LATER = re.compile(rb"\r\n(?:transfer-encoding|expect):", re.IGNORECASE)


class Connection(TConn):  # type: ignore[misc]
    def __init__(
        self, cfg: Any, sock: socket.socket, client: Any, server: Any, threads: RequestThreads
    ) -> None:
        super().__init__(cfg, sock, client, server)
        self.parser: _Parser | None = None
        self.threads = threads
        self.buffer = bytearray()  # received, not read yet
        self.body: Body | None = None  # body of the latest request
        self.deadline = 0.0  # end of its wait on the poller, by the monotonic clock
        self.data_ready = True  # for gunicorn: no thread waits for data
        self.is_late = False  # whether the latest request's body missed its deadline
        self.is_turned_away = False  # whether the latest request got no place at the entrance
        self.is_detached = False  # not read or closed until the detached stream ends
        self._request_deadline = 0.0
        self.body_within = 0.0  # seconds for the body
        self._num_searched = 0  # searched bytes of the buffer
        self._head_end = 0  # 0 until the head is whole
        self._request_end = 0  # end of the head, or of a small body
        self._num_discarded = 0

    # Main thread

    def limit_sends(self, seconds: float) -> None:
        """Makes a write fail after `seconds` without room in the socket's buffer."""
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def wait_for_request(
        self, begin_within: float, head_within: float, body_within: float, now: float
    ) -> None:
        """Begins to wait for a request. The limits are in seconds: from now to the first byte of
        the headers, from now to their last byte, and from then to the last byte of a small body.
        """
        self.is_late = self.is_turned_away = False
        self.body_within = body_within
        self._request_deadline = now + head_within
        self.deadline = self._request_deadline if self.buffer else now + begin_within
        self.sock.setblocking(False)

    def receive(self) -> bool:
        """Reads the part of a request that has arrived. Returns False at the end of the stream.
        Raises OSError.
        """
        data = self.sock.recv(RECEIVE)
        self.buffer += data
        self.deadline = self._request_deadline
        return bool(data)

    def receive_first(self) -> bool:
        """Reads what a new connection has sent so far. This is often the whole request, so the
        connection need not wait on the poller. Returns False at the end of the stream and after a
        reset. Raises OSError.
        """
        try:
            return not self.has_left() and self.receive()
        except BlockingIOError:
            return True

    def has_request(self) -> bool:
        """Whether the headers and a small body are complete. Headers that are too large, and will
        be refused, count as complete.
        """
        if not self._head_end:
            self._find_head()
        return 0 < self._request_end <= len(self.buffer)

    @property
    def is_post(self) -> bool:
        return self.buffer.startswith(b"POST ")

    @property
    def has_head(self) -> bool:
        return self._head_end > 0

    def _find_head(self) -> None:
        match = _END.search(self.buffer, max(self._num_searched - 3, 0))
        self._num_searched = len(self.buffer)
        if match is None:
            if len(self.buffer) > MAX_HEAD:
                self._head_end = self._request_end = len(self.buffer)
            return
        self._head_end = self._request_end = match.end()
        length = _LENGTH.search(self.buffer, 0, match.end())
        if length is None or _LATER.search(self.buffer, 0, match.end()) is not None:
            return
        if int(length[1]) <= MAX_SMALL:
            self._request_end += int(length[1])
            self._request_deadline = self.deadline = time.monotonic() + self.body_within

    def wait_for_end(self, within: float, now: float) -> None:
        """Stops sending, and waits `within` seconds for the client to close the connection. Raises
        OSError.
        """
        self.deadline = now + within
        self.sock.shutdown(socket.SHUT_WR)
        self.sock.setblocking(False)

    def discard(self, waste: bytearray) -> bool:
        """Discards the bytes that have arrived. Returns False at the end of the stream. Raises
        OSError.
        """
        count = self.sock.recv_into(waste)
        self._num_discarded += count
        return count > 0 and self._num_discarded < MAX_DISCARDED

    def close(self, graceful: bool = False) -> None:
        super().close(graceful)
        self.parser = None  # it refers to this connection, as does the body
        self.body = None

    # Any thread

    def has_left(self) -> bool:
        """Whether the client has reset the connection, so that no response can arrive. A client
        that has only shut down its sending side may still read.
        """
        poll = select.poll()
        poll.register(self.sock, 0)  # only errors
        return bool(poll.poll(0))

    # A request thread

    def init(self) -> None:
        """Passes the headers to gunicorn's parser. Raises errors to which gunicorn responds with
        414 or 431.
        """
        self.initialized = True
        if self.parser is None:
            self.parser = _Parser(self)
        end, self._head_end, self._request_end, self._num_searched = self._head_end, 0, 0, 0
        head = bytes(self.buffer[:end])
        del self.buffer[:end]  # moves no bytes
        if end > MAX_HEAD:
            max_line = self.cfg.limit_request_line
            if b"\r\n" not in head[:max_line]:
                raise LimitRequestLine(end, max_line)
            raise LimitRequestHeaders(f"more than {MAX_HEAD} bytes")
        self.parser.unreader.unread(head)


class _Unreader(SocketUnreader):  # type: ignore[misc]
    """The input of gunicorn's parser. It holds the headers of one request at a time."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.sock)
        self.connection = connection


class _Request(Request):  # type: ignore[misc]
    body: Any

    def set_body_reader(self) -> None:
        super().set_body_reader()  # checks lengths and codings
        connection: Connection = self.unreader.connection
        self.body = Body(connection, getattr(self.body.reader, "length", None))
        connection.body = self.body

    def should_close(self) -> bool:
        """Whether to close the connection after this response. It is closed if the request's body
        was not read, because the rest of the body may be long, and after a POST from a browser's
        page. When a page abandons a response on a reusable connection, Chromium keeps reading for
        up to 5 seconds (its HttpResponseBodyDrainer).
        """
        is_of_page = self.method == "POST" and any(name == "ORIGIN" for name, _ in self.headers)
        if is_of_page or (self.body is not None and not self.body.skip()):
            self.force_close()
        return bool(super().should_close())


class _Parser(RequestParser):  # type: ignore[misc]
    mesg_class = _Request

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.cfg, connection.sock, connection.client)
        self.unreader = _Unreader(connection)
