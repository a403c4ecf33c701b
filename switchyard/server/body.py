"""What an application reads of a request's body. gunicorn's own copies all that it has received for
each small chunk, and takes a body that is cut off for whole.
"""

import contextlib
import io
import re
import select
import socket
import time
from typing import TYPE_CHECKING, Never

from gunicorn.http.body import CHUNK_EXT_RE

from switchyard.app.exceptions import BadRequest, BodyTimeout

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from switchyard.server.connection import Connection

MAX_LINE = 8190  # bytes of a chunk's size and extensions, or of a trailer
MAX_TRAILERS = 100
MAX_FRAMING = 65536  # bytes around chunks, beyond as many as they hold
PATIENCE = 1.0  # seconds of waiting for a body in all, until it counts as coming slowly
RECEIVE = 1 << 20  # bytes at once
SMALL = 65536  # bytes that are skipped where nothing has read them

_SIZE = re.compile(rb"[0-9a-fA-F]+")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*")


class Body(io.RawIOBase):
    """`wsgi.input` of one request. Raises BadRequest where it is cut off or malformed, and what
    the threads refuse it for.
    """

    def __init__(self, connection: "Connection", length: int | None) -> None:
        """`length` None: in chunks."""
        self.failed = False  # for gunicorn: where the next request begins is unknown
        self.is_over = length == 0
        self._connection = connection
        self._is_chunked = length is None
        self._left = length or 0  # of all, or of the chunk
        self._num_read = 0
        self._num_framing = 0
        self._patience = PATIENCE

    def readable(self) -> bool:
        return True

    def readinto(self, target: "WriteableBuffer") -> int:
        """All that there is room for, or up to the end."""
        view = memoryview(target).cast("B")
        if not self._num_read and not self.is_over:
            self._connection.threads.check_body()
        count = 0
        try:
            while count < len(view) and not self.is_over:
                if self._left:
                    count += self._take(view[count:])
                else:
                    self._begin_chunk()
        except BaseException:
            self.failed = True
            raise
        finally:
            if self.is_over or self.failed:
                self._connection.threads.stop_waiting(self._connection)
        return count

    def skip(self) -> bool:
        """Whether all has been read. What is left of a short one is, if it has come."""
        buffer = self._connection.buffer
        if not self.is_over and not self._is_chunked and self._left <= SMALL:
            if self._left > len(buffer):
                with contextlib.suppress(OSError):  # not yet there, or never
                    size = self._left - len(buffer)
                    buffer += self._connection.sock.recv(size, socket.MSG_DONTWAIT)
            if self._left <= len(buffer):
                del buffer[: self._left]
                self.is_over = True
        return self.is_over and not self.failed

    def _take(self, target: memoryview) -> int:
        buffer = self._connection.buffer
        if not buffer:
            self._receive(self._left)
        count = min(len(target), len(buffer), self._left)
        target[:count] = buffer[:count]
        del buffer[:count]  # which moves nothing
        self._left -= count
        self._num_read += count
        if not self._left:
            if not self._is_chunked:
                self.is_over = True
            elif self._line(2):
                self._refuse("a chunk is longer than it says")
        return count

    def _begin_chunk(self) -> None:
        line = self._line(MAX_LINE)
        self._num_framing += len(line) + 4
        if self._num_framing > MAX_FRAMING + self._num_read:
            self._refuse("its chunks are too small")
        size, semicolon, extensions = line.partition(b";")
        if semicolon:
            size = size.rstrip(b" \t")
        if not _SIZE.fullmatch(size) or not CHUNK_EXT_RE.fullmatch(semicolon + extensions):
            self._refuse(f"{line[:100]!r} is no size of a chunk")
        self._left = int(size, 16)
        if not self._left:
            self._skip_trailers()
            self.is_over = True

    def _skip_trailers(self) -> None:
        for _ in range(MAX_TRAILERS):
            line = self._line(MAX_LINE)
            if not line:
                return
            if not _TRAILER.fullmatch(line):
                self._refuse(f"{line[:100]!r} is no trailer")
        self._refuse(f"more than {MAX_TRAILERS} trailers")

    def _line(self, max_bytes: int) -> bytes:
        """The next, without its end, which must come within so many bytes."""
        buffer = self._connection.buffer
        num_searched = 0
        while (end := buffer.find(b"\r\n", max(num_searched - 1, 0), max_bytes + 2)) < 0:
            num_searched = len(buffer)
            if num_searched >= max_bytes + 2:
                self._refuse("its chunks are malformed")
            self._receive(max_bytes)
        line = bytes(buffer[:end])
        del buffer[: end + 2]
        return line

    def _receive(self, size: int) -> None:
        """More, of the next requests, too, into the buffer."""
        sock = self._connection.sock
        if self._connection.is_late:
            seconds = self._connection.body_within
            raise BodyTimeout(f"the body did not arrive within {seconds:g} seconds")
        size = min(max(size, 8192), RECEIVE)
        try:
            data = sock.recv(size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            if not self._comes_soon():
                self._connection.threads.wait(self._connection)
            data = sock.recv(size)
        if not data:
            self._refuse(f"it ends after {self._num_read} bytes, before its end")
        self._connection.buffer += data

    def _comes_soon(self) -> bool:
        poll = select.poll()
        poll.register(self._connection.sock, select.POLLIN)
        begin = time.monotonic()
        has_come = bool(self._patience > 0 and poll.poll(self._patience * 1000))
        self._patience -= time.monotonic() - begin
        return has_come

    def _refuse(self, reason: str) -> Never:
        raise BadRequest(f"the body can't be read: {reason}", None, "invalid_body")
