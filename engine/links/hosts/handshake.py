"""The handshake of a server and a shared engine, before either reads a pickle.

Both send their protocol and a nonce, then a proof of the key: HMAC-SHA256 over both nonces. The
server's proof comes first, so that the engine proves nothing to a client without the key.
"""

import contextlib
import hashlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Iterator

from switchyard.engine.errors import ModelError

PROTOCOL = 2  # changes with any message: see tests/engine/hosts/test_handshake.py
TIMEOUT = 5.0  # seconds for all of it

_HELLO = struct.Struct("!10sH32s")
_MAGIC = b"switchyard"
_SIZE = hashlib.sha256().digest_size
_SERVER, _ENGINE = b"server", b"engine"


class Stranger(ModelError):
    """The other end is no Switchyard, or has another protocol, key or model."""


def meet_engine(connection: socket.socket, key: bytes) -> None:
    """The server's part. Raises Stranger, OSError, EOFError."""
    with _in_time(connection) as until:
        own, other = _exchange(connection, until)
        connection.sendall(_proof(key, _SERVER, own, other))
        try:
            proof = _receive(connection, _SIZE, until)
        except EOFError:
            raise Stranger("the engine has another key") from None
        if not hmac.compare_digest(proof, _proof(key, _ENGINE, other, own)):
            raise Stranger("the engine has another key")


def meet_server(connection: socket.socket, key: bytes) -> None:
    """The engine's part. Raises Stranger, OSError, EOFError."""
    with _in_time(connection) as until:
        own, other = _exchange(connection, until)
        proof = _receive(connection, _SIZE, until)
        if not hmac.compare_digest(proof, _proof(key, _SERVER, other, own)):
            raise Stranger("the server has another key")
        connection.sendall(_proof(key, _ENGINE, own, other))


@contextlib.contextmanager
def _in_time(connection: socket.socket) -> Iterator[float]:
    connection.settimeout(TIMEOUT)
    yield time.monotonic() + TIMEOUT
    connection.settimeout(None)


def _exchange(connection: socket.socket, until: float) -> tuple[bytes, bytes]:
    """Returns the nonces of both ends."""
    own = secrets.token_bytes(32)
    connection.sendall(_HELLO.pack(_MAGIC, PROTOCOL, own))
    magic, protocol, other = _HELLO.unpack(_receive(connection, _HELLO.size, until))
    if magic != _MAGIC:
        raise Stranger("the other end is no Switchyard")
    if protocol != PROTOCOL:
        raise Stranger(
            f"it speaks protocol {protocol}, and this one {PROTOCOL}: server and engine need"
            " versions of Switchyard with one protocol"
        )
    return own, other


def _receive(connection: socket.socket, size: int, until: float) -> bytes:
    data = b""
    while len(data) < size:
        connection.settimeout(max(until - time.monotonic(), 0.001))
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("it has closed the connection")
        data += part
    return data


def _proof(key: bytes, role: bytes, own: bytes, other: bytes) -> bytes:
    return hmac.digest(key, role + own + other, "sha256")
