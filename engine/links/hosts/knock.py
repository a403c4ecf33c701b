"""The introductions of a server and a shared engine, after the handshake."""

import os
from dataclasses import dataclass

from switchyard.engine.links.hosts import address
from switchyard.engine.links.hosts.handshake import TIMEOUT, Stranger, meet_engine
from switchyard.engine.links.wire import Wire


@dataclass(frozen=True, slots=True)
class Hello:
    """Of a server: its process id, and the fingerprint of the model that it tokenizes for.
    `is_look`: it only asks whether the engine would take it.
    """

    pid: int
    fingerprint: str
    is_look: bool = False


@dataclass(frozen=True, slots=True)
class Welcome:
    """Of an engine. `refusal`: why it does not take the server."""

    pid: int
    refusal: str = ""


def knock(at: str, key: bytes, fingerprint: str, is_look: bool = False) -> tuple[Wire, int]:
    """Returns a connection to an engine that takes this server, and the engine's process id. Raises
    Stranger, OSError, EOFError.
    """
    connection = address.connect(at, TIMEOUT)
    try:
        meet_engine(connection, key)
        wire = Wire(connection)
        wire.send(Hello(os.getpid(), fingerprint, is_look))
        welcome = wire.receive_one(TIMEOUT)
        assert isinstance(welcome, Welcome)
        if welcome.refusal:
            raise Stranger(welcome.refusal)
    except BaseException:
        connection.close()
        raise
    return wire, welcome.pid
