"""Messages over a socket. Each message is a pickle, preceded by its length in bytes and, with a
key, its seal.

A pickle can run any code. The other end is one of these:

- a process that this process has started, or that has started this process, over a pair of sockets
  (`pipe.py`). No other process can connect to them.
- a process of the same user or of root, over a Unix socket (`hosts/peer.py`).
- a process that has proved the key (`hosts/handshake.py`). Each of its messages has a seal.

Dataclasses are sent without fields that have their default values. Therefore one end can run a
later version whose dataclasses have additional fields, as long as these keep their default values.
"""

import contextlib
import dataclasses
import io
import logging
import pickle
import queue
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self

from switchyard.engine.links.seal import SIZE, Seals

logger = logging.getLogger(__name__)

HEAD = struct.Struct("!I")
MAX_BYTES = 1 << 28  # of a message
READ = 1 << 18  # maximum bytes of one read

Refuse = Callable[[Any, Sequence[str]], bool]


class Wire:
    """One end of a connection. One thread may send while another receives."""

    def __init__(
        self, connection: socket.socket, seals: Seals | None = None, refuse: Refuse | None = None
    ) -> None:
        """`connection`: a connected socket without a timeout. `refuse`: called with a message from
        a later version, without the fields that are unknown here, and with the names of those
        fields. If it returns True, the message is dropped.
        """
        self._socket = connection
        self._seals = seals
        self._refuse = refuse
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
        data = _pickled(message)
        if len(data) > MAX_BYTES:
            raise ValueError(f"a message is too long: {len(data)} bytes")
        seal = b"" if self._seals is None else self._seals.sent.of(data)
        self._socket.sendall(HEAD.pack(len(data)) + seal + data)

    def receive(self, timeout: float | None = None) -> list[Any] | None:
        """Returns all complete messages that have arrived, or an empty list if only part of a
        message has arrived. Returns None if no byte has arrived within `timeout` seconds. Raises
        OSError, and EOFError when the other end closes.
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
                raise OSError(f"a message is too long: {size} bytes")
            end = begin + self._head + size
            if end > len(received):
                break
            with memoryview(received)[begin:end] as view:
                message = self._open(view)
            begin = end
            if not _strange.names or not self._is_refused(message):
                messages.append(message)
        del received[:begin]
        return messages

    def _open(self, view: memoryview) -> Any:
        """Returns the message from its header, seal and pickle. Raises OSError for a wrong seal."""
        with view[HEAD.size : self._head] as seal, view[self._head :] as data:
            if self._seals is not None and not self._seals.received.fits(seal, data):
                logger.error("closing the connection: a message lacks the other end's seal")
                raise OSError("a message lacks the other end's seal")
            _strange.names = ()
            return pickle.loads(data)

    def _is_refused(self, message: Any) -> bool:
        names = _strange.names
        logger.debug("ignored fields of a later version: %s", ", ".join(names))
        return self._refuse is not None and self._refuse(message, names)

    def receive_one(self, timeout: float | None = None) -> Any:
        """`timeout`: seconds from one byte to the next. Raises EOFError, OSError."""
        while not (messages := self.receive(timeout)):
            if messages is None:
                raise TimeoutError("no message has arrived")
        first, *self._messages = messages
        return first

    def shut(self) -> None:
        """End the connection for both ends. Blocked calls to `send` and `receive` raise an
        error.
        """
        with contextlib.suppress(OSError):  # the connection has ended
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Strange(threading.local):
    """The fields, unknown to this version, of the message that this thread is reading."""

    names: tuple[str, ...] = ()


_strange = _Strange()


class _Reducers(dict[type, Callable[[Any], Any]]):
    """How a pickler takes objects apart, by class (see `dispatch_table` in pickle's docs)."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        if not dataclasses.is_dataclass(kind):
            raise KeyError(kind)
        is_own = "__reduce__" in vars(kind)  # its own must be as tolerant
        self[kind] = kind.__reduce__ if is_own else _Fields(kind).reduce
        return self[kind]


class _Fields:
    """The fields of a dataclass, with their defaults."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._defaults = [
            (f.name, f.default_factory() if callable(f.default_factory) else f.default)
            for f in dataclasses.fields(kind)
            if f.init  # else it follows from the others
        ]

    def reduce(self, one: Any) -> tuple[Any, ...]:
        values = {}
        for name, default in self._defaults:
            value = getattr(one, name)
            if value is not default and (type(value) is not type(default) or value != default):
                values[name] = value
        return restore, (self._kind, values)


_REDUCERS = _Reducers()


def _pickled(message: Any) -> bytes:
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _REDUCERS
    pickler.dump(message)
    return buffer.getvalue()


def restore(kind: type, values: dict[str, Any]) -> Any:
    """Returns an instance of the dataclass `kind`, from the fields that differ from their
    defaults.
    """
    try:
        return kind(**values)
    except TypeError:
        known = {f.name for f in dataclasses.fields(kind) if f.init}
        if not (strange := values.keys() - known):
            raise
        _strange.names += tuple(sorted(strange))
        return kind(**{name: value for name, value in values.items() if name in known})


def send_all(wire: Wire, outbox: "queue.SimpleQueue[Any]", interval: float | None = None) -> None:
    """Send the outbox's messages until one is None. After `interval` seconds without a message,
    send an empty list as a sign of life. Raises OSError.
    """
    while True:
        try:
            message = outbox.get(timeout=interval)
        except queue.Empty:
            message = []
        if message is None:
            return
        wire.send(message)
