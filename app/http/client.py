"""The client's end of a request's connection, as far as the WSGI server exposes it."""

import contextlib
import importlib
import select
import socket
import struct
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from switchyard import engine
from switchyard.app.exceptions import BodyTimeout, ClientGone

if sys.platform == "linux":
    import fcntl
    import termios

Presence = Literal["there", "half-closed", "gone"]

_HAS_LEFT = select.POLLERR | select.POLLHUP | select.POLLNVAL if hasattr(select, "poll") else 0
_END_OF_FILE = getattr(select, "POLLRDHUP", 0)  # exists only on Linux


def is_unix(environ: Mapping[str, Any]) -> bool:
    """Whether a request came over a Unix socket, as far as the WSGI server exposes the socket."""
    shown = _socket_of(environ)
    return shown is not None and shown.family == socket.AF_UNIX


def _socket_of(environ: Mapping[str, Any]) -> socket.socket | None:
    return environ.get("gunicorn.socket") or environ.get("werkzeug.socket")


def _descriptor_of(environ: Mapping[str, Any]) -> int | None:
    """The descriptor of the calling thread's request under uWSGI, otherwise None.

    The `uwsgi` module exists only inside uWSGI.
    """
    if "uwsgi.version" not in environ:
        return None
    descriptor: int = importlib.import_module("uwsgi").connection_fd()
    return descriptor


class Client:
    """The client of one request.

    gunicorn, werkzeug and uWSGI expose the socket; waitress reports whether the socket has closed.
    Under any other server, a client counts as connected until a write to it fails.
    """

    __slots__ = ("_is_disconnected", "_poll", "_socket")

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._socket = _socket_of(environ)
        self._is_disconnected = environ.get("waitress.client_disconnected")
        self._poll = None
        shown = _descriptor_of(environ) if self._socket is None else self._socket
        if shown is not None and _END_OF_FILE:
            # MSG_PEEK can't be used: it misses the end of file after a pipelined request, and TLS
            # sockets refuse it.
            self._poll = select.poll()
            self._poll.register(shown, _END_OF_FILE)

    def is_on(self, other: socket.socket) -> bool:
        """Whether the client is known to be on the socket `other`."""
        return self._socket is other

    def look(self) -> Presence:
        """The state of the connection now. Never waits.

        `half-closed`: the client will send nothing more. The client may still read, or may have
        closed the connection. A write shows which of the two is true, because a closed connection
        responds with a reset.
        """
        if self._poll is not None:
            for _, flags in self._poll.poll(0):
                return "gone" if flags & _HAS_LEFT else "half-closed"
        elif self._is_disconnected is not None and self._is_disconnected():
            return "gone"
        return "there"

    def limit_sends(self, seconds: float) -> None:
        """Makes writes fail, and makes the client count as gone, once the client has accepted no
        byte for `seconds`, which is at least 0.001.
        """
        if self._socket is None:
            return
        # If the reader has stopped or its machine has vanished while data is in the socket's
        # buffer, the kernel resets the connection, which `look` also sees. Linux only.
        if self._socket.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(seconds * 1000)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        # Limits a blocking write that finds no room in that buffer.
        micros = int(seconds * 1e6)
        limit = struct.pack("ll", micros // 1_000_000, micros % 1_000_000)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def send(self, data: bytes | memoryview) -> int:
        """Sends as much as fits into the socket's buffer. Returns the number of bytes sent.

        Never waits. Raises ClientGone.
        """
        assert self._socket is not None
        try:
            return self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return 0
        except OSError:
            raise ClientGone from None

    def num_untaken(self) -> int:
        """Bytes sent that the other end has not acknowledged. 0 if the system can't report this
        number.
        """
        if sys.platform != "linux" or self._socket is None:
            return 0
        data = fcntl.ioctl(self._socket, termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(data, sys.byteorder)

    def cut_off(self) -> None:
        """Makes the server's `close` reset the connection, so that data still in transit is
        dropped.
        """
        assert self._socket is not None
        with contextlib.suppress(OSError):  # the connection may be gone already
            now = struct.pack("ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
            self._socket.shutdown(socket.SHUT_RD)

    @contextlib.contextmanager
    def receiving(self, seconds: float) -> Iterator[None]:
        """Limits all reads within this context to `seconds` in total, and then raises BodyTimeout.
        A socket's own timeout limits each read separately, so a client that sends a byte per second
        would never exceed that timeout.
        """
        if self._socket is None:
            yield  # servers such as waitress read the body before they call the application
            return
        is_over = threading.Event()
        alarm = engine.ALARMS.set(seconds, lambda: self._stop_receiving(is_over))
        try:
            yield
        except Exception:
            if not is_over.is_set():
                raise
        finally:
            alarm.cancel()
        if is_over.is_set():
            raise BodyTimeout(f"the body did not arrive within {seconds:g} seconds")

    def _stop_receiving(self, is_over: threading.Event) -> None:
        is_over.set()
        with contextlib.suppress(OSError):  # the connection may be gone already
            # Has the same effect as an end of file from the client. The TLS socket's own method
            # isn't used, because the connection would then continue unencrypted.
            socket.socket.shutdown(self._socket, socket.SHUT_RD)  # type: ignore[arg-type]
