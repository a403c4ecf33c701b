"""Messages over a socket: each is a pickle, after its length in bytes and perhaps its seal.

A pickle can run any code. The other end is one of these:

- a process that this one has started, or that has started it, over a pair of sockets (`pipe.py`).
  No other process can connect to them.
- a process of the same user or of root, over a Unix socket (`hosts/peer.py`).
- a process that has proved the key (`hosts/handshake.py`). Each of its messages has a seal.
"""

import contextlib
import logging
import pickle
import queue
import select
import socket
import struct
from typing import Any, Self

from switchyard.engine.links.seal import SIZE, Seals

logger = logging.getLogger(__name__)

HEAD = struct.Struct("!I")
MAX_BYTES = 1 << 28  # of a message
READ = 1 << 18  # most bytes of one read


class Wire:
    """One end of a connection. One thread may send while another receives."""

    def __init__(self, connection: socket.socket, seals: Seals | None = None) -> None:
        """`connection`: connected, without a timeout."""
        self._socket = connection
        self._seals = seals
        self._head = HEAD.size if seals is None else HEAD.size + SIZE
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
        seal = b"" if self._seals is None else self._seals.sent.of(data)
        self._socket.sendall(HEAD.pack(len(data)) + seal + data)

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
            end = begin + self._head + size
            if end > len(received):
                break
            with memoryview(received)[begin:end] as view:
                messages.append(self._open(view))
            begin = end
        del received[:begin]
        return messages

    def _open(self, view: memoryview) -> Any:
        """The message of head, seal and pickle. Raises OSError for a wrong seal."""
        with view[HEAD.size : self._head] as seal, view[self._head :] as data:
            if self._seals is not None and not self._seals.received.fits(seal, data):
                logger.error("a message without the other end's seal: the connection is ended")
                raise OSError("a message without the other end's seal")
            return pickle.loads(data)

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
