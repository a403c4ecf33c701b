"""A WebSocket and its socket. A request thread reads and writes messages; simple_websocket's own
thread receives, and answers pings and the closing handshake.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import simple_websocket
import wsproto.events
import wsproto.utilities

from switchyard.app.exceptions import ClientGone
from switchyard.app.http.body import dumps

MAX_UNREAD = 65536  # bytes received ahead of what has been looked at
CLOSE_TIMEOUT = 2.0  # seconds for the client to answer the closing handshake

_CLOSED = (OSError, simple_websocket.ConnectionClosed, wsproto.utilities.LocalProtocolError)


class SharedSocket:
    """What simple_websocket takes for a socket. To the real one two threads write, so each frame
    goes out whole; and the server, not the thread that receives, closes it.
    """

    def __init__(self, server_socket: socket.socket) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._socket = server_socket
        self._sending = threading.Lock()  # guards writes
        self._may_receive = threading.Event()
        self._may_receive.set()
        self._unread = 0

    # Any thread

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes) -> int:
        with self._sending:
            try:
                self._socket.sendall(data)
            except OSError:  # half a frame may have gone out
                self.end()
                raise
        return len(data)

    def end(self) -> None:
        """Send and receive nothing more."""
        with contextlib.suppress(OSError):  # closed already
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._may_receive.set()

    # simple_websocket's thread

    def recv(self, size: int) -> bytes:
        """Not further ahead of the reader than `MAX_UNREAD`."""
        self._may_receive.wait()
        data = self._socket.recv(size)
        self._unread += len(data)
        if self._unread > MAX_UNREAD:
            self._may_receive.clear()
            self.wake()
        return data

    def close(self) -> None:
        """Nothing more is received."""
        self.end()
        self.wake()

    # Request thread

    def resume(self) -> None:
        """All that was received has been looked at."""
        self._unread = 0
        self._may_receive.set()


class Connection:
    """Called on the request thread, but for `wake`."""

    def __init__(
        self, websocket: simple_websocket.Server, max_message_size: int, heartbeat: float
    ) -> None:
        """`heartbeat`: seconds after which the client is sent a ping if it is sent nothing else. It
        needn't answer: the kernel says if nobody is there to take it.
        """
        self._websocket = websocket
        self._websocket.max_message_size = max_message_size
        self._socket: SharedSocket = websocket.sock
        self._socket.wake = self.wake
        self._heartbeat = heartbeat
        self._last_write = time.monotonic()

    def wake(self) -> None:
        """Have `wait` return. Any thread."""
        self._websocket.event.set()

    def wait(self, timeout: float) -> None:
        self._websocket.event.wait(timeout)
        self._websocket.event.clear()

    def messages(self) -> Iterator[str | bytes]:
        """Those that have come. Raises ClientGone.

        A wake that comes meanwhile may be lost: look at everything else after this.
        """
        try:
            while (message := self._websocket.receive(timeout=0)) is not None:
                yield message
        except simple_websocket.ConnectionClosed:
            raise ClientGone from None
        if not self._websocket.thread.is_alive():
            raise ClientGone
        self._socket.resume()

    def send(self, message: dict[str, Any]) -> None:
        """Raises ClientGone."""
        try:
            self._websocket.send(dumps(message).decode())
        except _CLOSED:
            raise ClientGone from None
        self._last_write = time.monotonic()

    def keep_alive(self) -> None:
        """Raises ClientGone."""
        if time.monotonic() - self._last_write < self._heartbeat:
            return
        try:
            self._websocket.sock.send(self._websocket.ws.send(wsproto.events.Ping()))
        except _CLOSED:
            raise ClientGone from None
        self._last_write = time.monotonic()

    def close(self, code: int, reason: str) -> None:
        """Close it if it is open, as far as the client has patience; end its thread."""
        with contextlib.suppress(*_CLOSED):
            self._websocket.close(code, reason)
        self._socket.resume()
        # Also where the client closes: that thread wakes this one before it answers.
        self._websocket.thread.join(CLOSE_TIMEOUT)
        self._socket.end()
        self._websocket.thread.join()
