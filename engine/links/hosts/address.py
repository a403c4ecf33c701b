"""The address of a shared engine: `unix:PATH`, or `HOST:PORT`. A source, `file:PATH` or
`dns:HOST:PORT`, names several engines.
"""

import contextlib
import ipaddress
import os
import socket
import stat

from switchyard.engine.errors import ModelError
from switchyard.engine.sources import DNS, FILE

UNIX = "unix:"
BACKLOG = 128
MODE = 0o600  # write access to it allows running code


def check(address: str) -> None:
    """Raises ModelError for an invalid address, or for an address that any user of the machine
    could take over.
    """
    if address.startswith(UNIX):
        if not os.path.isabs(address.removeprefix(UNIX)):
            raise ModelError(f"at: {address!r} must have an absolute path after unix:", "at")
        if danger := _danger(address):
            raise ModelError(f"at: {danger}", "at")
        return
    if not _is_place(address):
        raise ModelError(f"at: {address!r} must be unix:PATH or HOST:PORT", "at")


def check_source(source: str) -> None:
    """Raises ModelError for an invalid source."""
    rest = source.removeprefix(FILE).removeprefix(DNS)
    if source.startswith(FILE) and not os.path.isabs(rest):
        raise ModelError(f"at: {source!r} must have an absolute path after file:", "at")
    if source.startswith(DNS) and not _is_place(rest):
        raise ModelError(f"at: {source!r} must be dns:HOST:PORT", "at")


def is_tcp(address: str) -> bool:
    return not address.startswith((UNIX, FILE))


def host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_place(address: str) -> bool:
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536
    return is_port and bool(host) and not set(host) & set("/ \t")


def listen(address: str) -> socket.socket:
    """Returns a socket that listens on the address. Raises ModelError, for example for an address
    that is open to all networks.
    """
    check(address)
    try:
        return _listen_at_port(address) if is_tcp(address) else _listen_at_path(address)
    except OSError as reason:
        raise ModelError(f"at: can't listen on {address}: {reason.strerror or reason}") from None


def connect(address: str, timeout: float) -> socket.socket:
    """Returns a connected socket without a timeout. Doesn't check which process is listening.
    Raises OSError.
    """
    if is_tcp(address):
        host, port = host_and_port(address)
        connection = socket.create_connection((host, port), timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        if danger := _danger(address):  # changed since the start
            raise OSError(danger)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        try:
            connection.connect(address.removeprefix(UNIX))
        except OSError:
            connection.close()
            raise
    connection.settimeout(None)
    return connection


def release(listener: socket.socket) -> None:
    """Close the listener, and remove its Unix socket."""
    name = listener.getsockname()
    listener.close()
    if isinstance(name, str):
        with contextlib.suppress(OSError):
            os.unlink(name)


def _listen_at_port(address: str) -> socket.socket:
    host, port = host_and_port(address)
    family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    if ipaddress.ip_address(str(where[0])).is_unspecified:
        raise ModelError(f"at: {address} is open to all networks; use one address of this machine")
    listener = socket.create_server((str(where[0]), port), family=family, backlog=BACKLOG)
    return listener


def _listen_at_path(address: str) -> socket.socket:
    path = address.removeprefix(UNIX)
    with contextlib.suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode) and not _answers(path):
            os.unlink(path)  # left over by an engine that was killed
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
        os.chmod(path, MODE)  # before `listen`, so that no client connects earlier
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _danger(address: str) -> str:
    """Returns why the socket's directory is not safe, or an empty string if it is safe or doesn't
    exist yet. In a sticky directory, users can't remove or rename each other's sockets.
    """
    directory = os.path.dirname(address.removeprefix(UNIX))
    try:
        mode = os.stat(directory).st_mode
    except OSError:
        return ""
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return f"{address} is in a directory that all users can write to: chmod o-w {directory}"
    return ""


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as one:
        one.setblocking(False)  # its queue may be full
        try:
            one.connect(path)
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
    return True
