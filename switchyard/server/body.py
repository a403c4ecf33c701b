"""The request body as the application reads it. It replaces gunicorn's own body, which copies all
received bytes for each small chunk, and treats a truncated body as complete.
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

MAX_LINE = 8190  # bytes of a chunk's header line, or of a trailer
MAX_TRAILERS = 100
MAX_FRAMING = 65536  # bytes of framing allowed beyond the bytes of content
PATIENCE = 1.0  # total seconds of waiting for a body until it counts as slow
RECEIVE = 1 << 20  # bytes of one read
SMALL = 65536  # bytes that are skipped if the application has not read them

_SIZE = re.compile(rb"[0-9a-fA-F]+")
_TRAILER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t -~\x80-\xff]*")


class Body(io.RawIOBase):
    """The `wsgi.input` of one request. Raises BadRequest for a truncated or malformed body,
    BodyTimeout for a late body, and Full if `RequestThreads` refuses the body.
    """

    def __init__(self, connection: "Connection", length: int | None) -> None:
        """`length`: the length of the body, or None if it is chunked."""
        self.failed = False  # for gunicorn: the start of the next request is unknown
        self.is_over = length == 0
        self._connection = connection
        self._is_chunked = length is None
        self._left = length or 0  # bytes left of the body, or of the chunk
        self._num_read = 0
        self._num_framing = 0
        self._patience = PATIENCE

    def readable(self) -> bool:
        return True

    def readinto(self, target: "WriteableBuffer") -> int:
        """Fills `target`, unless the body ends first."""
        view = memoryview(target).cast("B")
        if not self._num_read and not self.is_over:
            self._connection.threads.check_body(self._connection.is_turned_away)
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
        """Skips the rest of a short body if it has arrived. Returns whether the whole body has been
        read.
        """
        buffer = self._connection.buffer
        if not self.is_over and not self._is_chunked and self._left <= SMALL:
            if self._left > len(buffer):
                with contextlib.suppress(OSError):  # not arrived
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
        del buffer[:count]  # moves no bytes
        self._left -= count
        self._num_read += count
        if not self._left:
            if not self._is_chunked:
                self.is_over = True
            elif self._line(2):
                self._refuse("a chunk is longer than its stated size")
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
            self._refuse(f"{line[:100]!r} is not a chunk size")
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
                self._refuse(f"{line[:100]!r} is not a trailer")
        self._refuse(f"more than {MAX_TRAILERS} trailers")

    def _line(self, max_bytes: int) -> bytes:
        """Returns the next line without its line break, which must occur within `max_bytes`."""
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
        """Receives more bytes into the buffer, including bytes of later requests."""
        sock = self._connection.sock
        if self._connection.is_late:
            seconds = self._connection.body_within
            raise BodyTimeout(f"the body did not arrive within {seconds:g} seconds")
        size = min(max(size, 8192), RECEIVE)
        try:
            data = sock.recv(size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._connection.threads.leave_entrance(self._connection)
            if not self._comes_soon():
                self._connection.threads.wait(self._connection)
            data = sock.recv(size)
        if not data:
            self._refuse(f"it is incomplete: it ends after {self._num_read} bytes")
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
