"""Where a running server is, as the commands that ask it need it."""

import http.client
import re
import socket
import urllib.parse

import click

from switchyard.app.config import read_settings
from switchyard.app.sources import SettingsError

ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # listened on, and where that is on this machine


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def url_of_settings() -> str:
    """Where the settings have a server listen. Raises click.UsageError."""
    try:
        bind = read_settings().bind
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    if bind.startswith("fd://"):
        raise click.UsageError(f"the server listens on {bind}: give its --url")
    if bind.startswith("unix:"):
        return bind
    host, _, port = bind.rpartition(":")
    return f"http://{ANY.get(host, host)}:{port}"


def connect(url: str, timeout: float) -> tuple[http.client.HTTPConnection, str]:
    """A connection, and what paths begin with. `url`: http://, https:// or unix:PATH. `timeout`:
    seconds without a byte. Raises click.UsageError.
    """
    if url.startswith("unix:"):
        return _UnixConnection(url.removeprefix("unix:"), timeout), ""
    parts = urllib.parse.urlsplit(url)
    if not re.fullmatch("https?", parts.scheme) or not parts.netloc:
        raise click.UsageError(f"--url {url}: must be http://HOST:PORT, https://… or unix:PATH")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.netloc, timeout=timeout), parts.path.rstrip("/")
