"""What a server and a shared engine say of themselves, behind the handshake."""

import os
from dataclasses import dataclass

from switchyard.engine.links.hosts import address
from switchyard.engine.links.hosts.handshake import TIMEOUT, Stranger, meet_engine
from switchyard.engine.links.wire import Wire


@dataclass(frozen=True, slots=True)
class Hello:
    """Of a server: who it is, and of which model it has the tokenizer."""

    pid: int
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """Of an engine. `refusal`: why not."""

    pid: int
    refusal: str = ""


def knock(at: str, key: bytes, fingerprint: str) -> tuple[Wire, int]:
    """A connection to an engine that takes it, and the number of its process. Raises Stranger,
    OSError, EOFError.
    """
    connection = address.connect(at, TIMEOUT)
    try:
        meet_engine(connection, key)
        wire = Wire(connection)
        wire.send(Hello(os.getpid(), fingerprint))
        welcome = wire.receive_one(TIMEOUT)
        assert isinstance(welcome, Welcome)
        if welcome.refusal:
            raise Stranger(welcome.refusal)
    except BaseException:
        connection.close()
        raise
    return wire, welcome.pid
