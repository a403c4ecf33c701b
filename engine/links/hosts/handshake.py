"""The handshake between a server and a shared engine. No pickle is read before the handshake ends.

1. Without a key, each end asks the kernel which user is at the other end.
2. Both ends send their protocol and a nonce.
3. The server sends `Hello`, then the engine sends `Welcome`. Each is JSON, with a proof of the key:
  HMAC-SHA256 over both nonces and the JSON. The server's proof comes first, so that the engine
  proves nothing to a client that lacks the key.
4. With a key, both derive further keys from it and the nonces, which seal all later messages.
  Otherwise a process between the two ends could relay the proofs, and then send its own messages.
"""

import contextlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterator

from switchyard.engine.links.hosts.introduction import (
    Hello,
    Introduction,
    Welcome,
    from_json,
    to_json,
)
from switchyard.engine.links.hosts.key import keys_in
from switchyard.engine.links.hosts.peer import OtherKey, Stranger, check_peer
from switchyard.engine.links.seal import Seal, Seals

PROTOCOL = 5  # changes when a message's meaning does: see tests/engine/hosts/test_handshake.py
TIMEOUT = 5.0  # seconds for all of it
MAX_INTRODUCTION = 4096  # bytes of JSON

_GREETING = struct.Struct("!10sH32s")  # this one never changes: versions recognize each other by it
_MAGIC = b"switchyard"
_SIZE = struct.Struct("!H")
_PROOF = 32  # bytes

# What an HMAC is for. No purpose is a prefix of another.
_HELLO, _WELCOME = b"hello\0", b"welcome\0"
_FROM_SERVER, _FROM_ENGINE = b"from the server\0", b"from the engine\0"


def meet_engine(
    connection: socket.socket, key: bytes, hello: Hello
) -> tuple[Welcome, Seals | None]:
    """The server's part of the handshake. Raises Stranger, OSError, EOFError."""
    check_peer(connection, key)
    with _in_time(connection) as until:
        own, other = _exchange(connection, until)
        nonces = own + other
        _send(connection, hello, lambda data: _hmac(key, _HELLO, nonces, data))
        proof, data = _receive_introduction(connection, until)
        if not hmac.compare_digest(proof, _hmac(key, _WELCOME, nonces, data)):
            raise OtherKey("the engine has a different key")
        welcome = from_json(Welcome, data)
    return welcome, _seals(key, nonces, _FROM_SERVER, _FROM_ENGINE)


def meet_server(
    connection: socket.socket, key: bytes, answer: Callable[[Hello], Welcome]
) -> tuple[Hello, Seals | None]:
    """The engine's part of the handshake. `key` may contain several keys (see `keys_in`). Raises
    Stranger, OSError, EOFError.
    """
    check_peer(connection, key)
    with _in_time(connection) as until:
        own, other = _exchange(connection, until)
        nonces = other + own
        proof, data = _receive_introduction(connection, until)
        for one in keys_in(key):
            if hmac.compare_digest(proof, _hmac(one, _HELLO, nonces, data)):
                key = one
                break
        else:
            _send(connection, Welcome(0), lambda _: bytes(_PROOF))  # it proves nothing
            raise Stranger("the server has a different key")
        hello = from_json(Hello, data)
        welcome = answer(hello)
        _send(connection, welcome, lambda data: _hmac(key, _WELCOME, nonces, data))
        if welcome.refusal:
            raise Stranger(f"server {hello.pid}: {welcome.refusal}")
    return hello, _seals(key, nonces, _FROM_ENGINE, _FROM_SERVER)


@contextlib.contextmanager
def _in_time(connection: socket.socket) -> Iterator[float]:
    connection.settimeout(TIMEOUT)
    yield time.monotonic() + TIMEOUT
    connection.settimeout(None)


def _exchange(connection: socket.socket, until: float) -> tuple[bytes, bytes]:
    """Returns the nonces of both ends."""
    own = secrets.token_bytes(32)
    connection.sendall(_GREETING.pack(_MAGIC, PROTOCOL, own))
    magic, protocol, other = _GREETING.unpack(_receive(connection, _GREETING.size, until))
    if magic != _MAGIC:
        raise Stranger("the other end is not Switchyard")
    if protocol != PROTOCOL:
        raise Stranger(
            f"the other end uses protocol {protocol}, but this end uses {PROTOCOL}: server and"
            " engine need versions of Switchyard with the same protocol"
        )
    return own, other


def _send(connection: socket.socket, one: Introduction, prove: Callable[[bytes], bytes]) -> None:
    data = to_json(one)
    connection.sendall(_SIZE.pack(len(data)) + prove(data) + data)


def _receive_introduction(connection: socket.socket, until: float) -> tuple[bytes, bytes]:
    """Returns the proof and the JSON, both still unchecked."""
    (size,) = _SIZE.unpack(_receive(connection, _SIZE.size, until))
    if size > MAX_INTRODUCTION:
        raise Stranger(f"its introduction is too long: {size} bytes")
    return _receive(connection, _PROOF, until), _receive(connection, size, until)


def _receive(connection: socket.socket, size: int, until: float) -> bytes:
    data = b""
    while len(data) < size:
        connection.settimeout(max(until - time.monotonic(), 0.001))
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("it has closed the connection")
        data += part
    return data


def _seals(key: bytes, nonces: bytes, sent: bytes, received: bytes) -> Seals | None:
    """Returns None without a key, because the kernel has identified the user at the other end."""
    if not key:
        return None
    return Seals(Seal(_hmac(key, sent, nonces)), Seal(_hmac(key, received, nonces)))


def _hmac(key: bytes, purpose: bytes, nonces: bytes, data: bytes = b"") -> bytes:
    return hmac.digest(key, purpose + nonces + data, "sha256")
