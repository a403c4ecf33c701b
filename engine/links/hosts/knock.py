"""Connects a server to a shared engine."""

import contextlib
import os
import socket

from switchyard.engine.links.hosts import address
from switchyard.engine.links.hosts.handshake import TIMEOUT, meet_engine
from switchyard.engine.links.hosts.introduction import Hello, Welcome
from switchyard.engine.links.hosts.key import keys_in
from switchyard.engine.links.hosts.peer import OtherKey, Stranger
from switchyard.engine.links.seal import Seals
from switchyard.engine.links.wire import Wire


def knock(at: str, key: bytes, fingerprint: str) -> tuple[Wire, int]:
    """Returns a connection to an engine that accepts this server, and the engine's process id.
    Raises Stranger, OSError, EOFError.
    """
    connection, seals, welcome = _meet(at, key, Hello(os.getpid(), fingerprint))
    return Wire(connection, seals), welcome.pid


def look(at: str, key: bytes, fingerprint: str = "") -> Welcome:
    """Returns an engine's reply. If a fingerprint is given, the engine replies only if it would
    accept a server of that model. Raises Stranger, OSError, EOFError.
    """
    connection, _, welcome = _meet(at, key, Hello(os.getpid(), fingerprint, is_look=True))
    connection.close()
    return welcome


def _meet(at: str, key: bytes, hello: Hello) -> tuple[socket.socket, Seals | None, Welcome]:
    """Connects with the first of our keys that the engine has, too."""
    *others, last = keys_in(key)
    for one in others:
        with contextlib.suppress(OtherKey):
            return _meet_with(at, one, hello)
    return _meet_with(at, last, hello)


def _meet_with(at: str, key: bytes, hello: Hello) -> tuple[socket.socket, Seals | None, Welcome]:
    connection = address.connect(at, TIMEOUT)
    try:
        welcome, seals = meet_engine(connection, key, hello)
        if welcome.refusal:
            raise Stranger(welcome.refusal)
    except BaseException:
        connection.close()
        raise
    return connection, seals, welcome
