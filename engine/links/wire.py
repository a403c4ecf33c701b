"""Messages over a socket: each is a pickle behind its length in bytes.

A pickle can run any code. The other end is this server's own process, or has proven that it has the
key.
"""

import contextlib
import pickle
import queue
import select
import socket
import struct
from typing import Any, Self

HEAD = struct.Struct("!I")
MAX_BYTES = 1 << 28  # of a message
READ = 1 << 18  # most bytes of one read


class Wire:
    """One end of a connection. One thread may send while another receives."""

    def __init__(self, connection: socket.socket) -> None:
        """`connection`: connected, without a timeout."""
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._received = bytearray()  # the beginning of a message
        self._messages: list[Any] = []  # received, and not returned yet

    @classmethod
    def pair(cls) -> tuple[Self, Self]:
        here, there = socket.socketpair()
        return cls(here), cls(there)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Any) -> None:
        """Raises OSError."""
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        if len(data) > MAX_BYTES:
            raise ValueError(f"a message of {len(data)} bytes")
        self._socket.sendall(HEAD.pack(len(data)) + data)

    def receive(self, timeout: float | None = None) -> list[Any] | None:
        """All whole messages that have arrived; empty if only a part of one has. None if no byte
        has come in `timeout` seconds. Raises EOFError when the other end closes, OSError.
        """
        if self._messages:
            messages, self._messages = self._messages, []
            return messages
        if not self._poll.poll(None if timeout is None else timeout * 1000):
            return None
        data = self._socket.recv(READ)
        if not data:
            raise EOFError
        received = self._received
        received += data
        messages, begin = [], 0
        while len(received) - begin >= HEAD.size:
            (size,) = HEAD.unpack_from(received, begin)
            if size > MAX_BYTES:
                raise OSError(f"a message of {size} bytes")
            end = begin + HEAD.size + size
            if end > len(received):
                break
            with memoryview(received) as view:
                messages.append(pickle.loads(view[begin + HEAD.size : end]))
            begin = end
        del received[:begin]
        return messages

    def receive_one(self, timeout: float | None = None) -> Any:
        """`timeout`: seconds from one byte to the next. Raises EOFError, OSError."""
        while not (messages := self.receive(timeout)):
            if messages is None:
                raise TimeoutError("nothing comes")
        first, *self._messages = messages
        return first

    def shut(self) -> None:
        """End the connection for both ends; blocked calls of `send` and `receive` raise."""
        with contextlib.suppress(OSError):  # the connection has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def send_all(wire: Wire, outbox: "queue.SimpleQueue[Any]", interval: float | None = None) -> None:
    """Send the outbox's messages, up to None. An empty list is a sign of life, sent after
    `interval` seconds without a message. Raises OSError.
    """
    while True:
        try:
            message = outbox.get(timeout=interval)
        except queue.Empty:
            message = []
        if message is None:
            return
        wire.send(message)
