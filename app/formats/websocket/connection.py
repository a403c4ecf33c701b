"""A WebSocket and the socket beneath it.

The request thread reads and writes messages. simple_websocket's own thread receives data, and
answers pings and the closing handshake.
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

MAX_UNREAD = 65536  # bytes that were received but not yet read as messages
CLOSE_TIMEOUT = 2.0  # seconds that the client has to answer the closing handshake

_CLOSED = (OSError, simple_websocket.ConnectionClosed, wsproto.utilities.LocalProtocolError)


class SharedSocket:
    """A wrapper around the socket, for simple_websocket. Two threads write to the socket, and each
    frame is written in one piece.

    The server, not the receiving thread, closes the real socket.
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
            except OSError:  # a part of the frame may have been sent
                self.end()
                raise
        return len(data)

    def end(self) -> None:
        """Ends sending and receiving."""
        with contextlib.suppress(OSError):  # the socket may be closed already
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._may_receive.set()

    # simple_websocket's thread

    def recv(self, size: int) -> bytes:
        """Receives data. First waits as long as more than MAX_UNREAD received bytes have not been
        read as messages.
        """
        self._may_receive.wait()
        data = self._socket.recv(size)
        self._unread += len(data)
        if self._unread > MAX_UNREAD:
            self._may_receive.clear()
            self.wake()
        return data

    def close(self) -> None:
        """Called by simple_websocket when it stops receiving."""
        self.end()
        self.wake()

    # Request thread

    def resume(self) -> None:
        """Continues receiving, after the reader has taken all messages."""
        self._unread = 0
        self._may_receive.set()


class Connection:
    """One WebSocket. Only the request thread uses it, except that any thread may call `wake`."""

    def __init__(
        self, websocket: simple_websocket.Server, max_message_size: int, heartbeat: float
    ) -> None:
        """`heartbeat`: seconds without a message after which a ping is sent.

        The client need not answer, because a write to a client that has left fails in any case.
        """
        self._websocket = websocket
        self._websocket.max_message_size = max_message_size
        self._socket: SharedSocket = websocket.sock
        self._socket.wake = self.wake
        self._heartbeat = heartbeat
        self._last_write = time.monotonic()

    def wake(self) -> None:
        """Makes `wait` return. Any thread may call this method."""
        self._websocket.event.set()

    def wait(self, timeout: float) -> None:
        self._websocket.event.wait(timeout)
        self._websocket.event.clear()

    def messages(self) -> Iterator[str | bytes]:
        """The messages that have arrived. Raises ClientGone.

        A `wake` during this call may be lost, so the caller checks everything else afterwards.
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
        """Sends a message as JSON. Raises ClientGone."""
        try:
            self._websocket.send(dumps(message).decode())
        except _CLOSED:
            raise ClientGone from None
        self._last_write = time.monotonic()

    def keep_alive(self) -> None:
        """Sends a ping if it is due. Raises ClientGone."""
        if time.monotonic() - self._last_write < self._heartbeat:
            return
        try:
            self._websocket.sock.send(self._websocket.ws.send(wsproto.events.Ping()))
        except _CLOSED:
            raise ClientGone from None
        self._last_write = time.monotonic()

    def close(self, code: int, reason: str) -> None:
        """Closes the WebSocket, waits at most CLOSE_TIMEOUT seconds for the client's answer, and
        ends the receiving thread.
        """
        with contextlib.suppress(*_CLOSED):
            self._websocket.close(code, reason)
        self._socket.resume()
        # Needed even if the client closes, because the receiving thread wakes this one before it
        # answers.
        self._websocket.thread.join(CLOSE_TIMEOUT)
        self._socket.end()
        self._websocket.thread.join()
