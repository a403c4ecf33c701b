"""A client's connection, on the worker's poller until the head of a request is whole, and its body
if that is small, and again behind the last answer. gunicorn's own has a request thread wait.
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
from switchyard.server.request_threads import RequestThreads

MAX_HEAD = 65536  # bytes of a request's line and headers
MAX_SMALL = 65536  # bytes of a body that a request comes with; a longer one may come later
RECEIVE = 16384  # bytes at once
MAX_DISCARDED = 64 << 20  # bytes that a client may send on behind its answer

# Where a head ends, or can't be one: gunicorn's parser refuses line feeds that stand alone.
_END = re.compile(rb"\r\n\r\n|(?<!\r)\n")
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,5})[ \t]*\r\n", re.IGNORECASE)
# Of bodies whose length is not known, or which are asked for.
_LATER = re.compile(rb"\r\n(?:transfer-encoding|expect):", re.IGNORECASE)


class Connection(TConn):  # type: ignore[misc]
    def __init__(
        self, cfg: Any, sock: socket.socket, client: Any, server: Any, threads: RequestThreads
    ) -> None:
        super().__init__(cfg, sock, client, server)
        self.parser: _Parser | None = None
        self.threads = threads
        self.buffer = bytearray()  # what has been received and not been read
        self.body: Body | None = None  # of the latest request
        self.deadline = 0.0  # of its wait on the poller, by the monotonic clock
        self.data_ready = True  # for gunicorn: no thread is to wait for it
        self.is_late = False  # the body of the latest request, which was waited for
        self.is_detached = False  # neither read nor closed until its end is told
        self._request_deadline = 0.0
        self.body_within = 0.0  # seconds
        self._num_searched = 0  # bytes of the buffer
        self._head_end = 0  # once the head is whole
        self._request_end = 0  # then: where a small body ends, or the head
        self._num_discarded = 0

    # Main thread

    def limit_sends(self, seconds: float) -> None:
        """Let a write fail that has found no room in the socket's buffer for so long."""
        limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def wait_for_request(
        self, begin_within: float, head_within: float, body_within: float, now: float
    ) -> None:
        """Seconds from now until the head's first byte, and its last; and from there on until the
        last of a small body.
        """
        self.is_late = False
        self.body_within = body_within
        self._request_deadline = now + head_within
        self.deadline = self._request_deadline if self.buffer else now + begin_within
        self.sock.setblocking(False)

    def receive(self) -> bool:
        """What there is of a request. False at the end of all. Raises OSError."""
        data = self.sock.recv(RECEIVE)
        self.buffer += data
        self.deadline = self._request_deadline
        return bool(data)

    def has_request(self) -> bool:
        """Whether a head is whole, or so far from one that it is refused, and a small body."""
        if not self._head_end:
            self._find_head()
        return 0 < self._request_end <= len(self.buffer)

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
        """Seconds from now until the client closes. Nothing more is sent. Raises OSError."""
        self.deadline = now + within
        self.sock.shutdown(socket.SHUT_WR)
        self.sock.setblocking(False)

    def discard(self, waste: bytearray) -> bool:
        """What there is. False at the end of all. Raises OSError."""
        count = self.sock.recv_into(waste)
        self._num_discarded += count
        return count > 0 and self._num_discarded < MAX_DISCARDED

    def close(self, graceful: bool = False) -> None:
        super().close(graceful)
        self.parser = None  # which knows this connection, as does the body
        self.body = None

    # A request thread

    def has_left(self) -> bool:
        """Whether the client has reset the connection: nobody would read an answer. One that has
        only sent its end of file may still read.
        """
        poll = select.poll()
        poll.register(self.sock, 0)  # errors, and nothing else
        return bool(poll.poll(0))

    def init(self) -> None:
        """Give gunicorn's parser the head. Raises what it answers with a 414 or 431."""
        self.initialized = True
        if self.parser is None:
            self.parser = _Parser(self)
        end, self._head_end, self._request_end, self._num_searched = self._head_end, 0, 0, 0
        head = bytes(self.buffer[:end])
        del self.buffer[:end]  # which moves nothing
        if end > MAX_HEAD:
            max_line = self.cfg.limit_request_line
            if b"\r\n" not in head[:max_line]:
                raise LimitRequestLine(end, max_line)
            raise LimitRequestHeaders(f"more than {MAX_HEAD} bytes")
        self.parser.unreader.unread(head)


class _Unreader(SocketUnreader):  # type: ignore[misc]
    """Of gunicorn's parser. It holds one head at a time."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.sock)
        self.connection = connection


class _Request(Request):  # type: ignore[misc]
    body: Any

    def set_body_reader(self) -> None:
        super().set_body_reader()  # with all its checks of lengths and codings
        connection: Connection = self.unreader.connection
        self.body = Body(connection, getattr(self.body.reader, "length", None))
        connection.body = self.body

    def should_close(self) -> bool:
        """Also behind an answer that has not read its body: the next head may be far; and behind
        what a page of a browser posts. Of an answer that is given up Chromium reads on for up to 5
        seconds (its HttpResponseBodyDrainer) where the connection may be used again.
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
