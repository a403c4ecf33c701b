"""Can an address be listened on? With nothing but Python's own library: asked before any package is
installed, too.
"""

import errno
import re
import socket
import time
from collections.abc import Callable

LOOK = 0.05  # seconds from one look to the next


def refusal(bind: str) -> str | None:
    """Why not, and what to do. One that is not understood is let through."""
    found = _look(bind)
    return None if found is None else found[0]


def refusal_after(bind: str, seconds: float, tell: Callable[[str], None]) -> str | None:
    """The same, of an address that another server may leave within so many seconds. `tell` is told
    that it is waited for.
    """
    end = time.monotonic() + seconds
    found = _look(bind)
    if found is not None and found[1] and seconds:
        tell(f"{bind} is taken: waiting {seconds:g} s for it")
    while found is not None and found[1] and time.monotonic() < end:
        time.sleep(LOOK)
        found = _look(bind)
    return None if found is None else found[0]


def _look(bind: str) -> tuple[str, bool] | None:
    """Why not, and whether another program has it."""
    if bind.startswith("unix:"):
        return _of_path(bind.removeprefix("unix:"))
    address = re.fullmatch(r"\[?([^\[\]]+)\]?:(\d+)", bind, re.ASCII)
    if address is None or int(address[2]) > 65535:
        return None
    host, port = address[1], int(address[2])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return f"{bind} can't be listened on: {error.strerror}", False
            other = f"{bind.rpartition(':')[0]}:{port % 65535 + 1}"
            return (
                f"{bind} is taken by another program: end that, or choose another port, such as"
                f" SWITCHYARD_BIND={other}"
            ), True
    return None


def _of_path(path: str) -> tuple[str, bool] | None:
    """gunicorn would take the place of another server's socket without a word."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(5)
        try:
            sock.connect(path)
        except OSError:  # nothing is there, or nobody listens
            return None
    return f"unix:{path} is taken by another server: end that, or choose another path", True
