"""How a server comes to a shared engine."""

import os

from switchyard.engine.links.hosts import address
from switchyard.engine.links.hosts.handshake import TIMEOUT, meet_engine
from switchyard.engine.links.hosts.introduction import Hello
from switchyard.engine.links.hosts.peer import Stranger
from switchyard.engine.links.wire import Wire


def knock(at: str, key: bytes, fingerprint: str, is_look: bool = False) -> tuple[Wire, int]:
    """Returns a connection to an engine that takes this server, and the engine's process id. Raises
    Stranger, OSError, EOFError.
    """
    connection = address.connect(at, TIMEOUT)
    try:
        hello = Hello(os.getpid(), fingerprint, is_look)
        welcome, seals = meet_engine(connection, key, hello)
        if welcome.refusal:
            raise Stranger(welcome.refusal)
    except BaseException:
        connection.close()
        raise
    return Wire(connection, seals), welcome.pid
