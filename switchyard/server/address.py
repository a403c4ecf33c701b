"""Checks whether an address is free. Uses only Python's standard library, because the check also
runs before any package is installed.
"""

import errno
import re
import socket
import time
from collections.abc import Callable

LOOK = 0.05  # seconds between checks


def refusal(bind: str) -> str | None:
    """Returns why the server can't listen on the address, with a remedy, or None if it can. An
    address in an unknown format is accepted.
    """
    found = _look(bind)
    return None if found is None else found[0]


def refusal_after(bind: str, seconds: float, tell: Callable[[str], None]) -> str | None:
    """Like `refusal`, after waiting for up to `seconds` for another server to release the address.
    `tell` is called with a message about the wait.
    """
    end = time.monotonic() + seconds
    found = _look(bind)
    if found is not None and found[1] and seconds:
        tell(f"{bind} is taken: waiting up to {seconds:g} s for it")
    while found is not None and found[1] and time.monotonic() < end:
        time.sleep(LOOK)
        found = _look(bind)
    return None if found is None else found[0]


def _look(bind: str) -> tuple[str, bool] | None:
    """Returns why the server can't listen on the address, and whether another program holds it, or
    None if it is free.
    """
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
                return f"can't listen on {bind}: {error.strerror}", False
            other = f"{bind.rpartition(':')[0]}:{port % 65535 + 1}"
            return (
                f"{bind} is taken by another program: stop it, or choose another port, such as"
                f" SWITCHYARD_BIND={other}"
            ), True
    return None


def _of_path(path: str) -> tuple[str, bool] | None:
    """Checks a Unix socket's path, because gunicorn silently replaces another server's socket."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.setblocking(False)
        try:
            sock.connect(path)
        except BlockingIOError:  # the listener's queue is full
            pass
        except OSError:  # no such file, or no listener
            return None
    return f"unix:{path} is taken by another server: stop it, or choose another path", True
