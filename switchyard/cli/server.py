"""Finds and queries a running server, for the commands that need one. Also contains `switchyard
drain`.
"""

import http.client
import json
import re
import socket
import ssl
import sys
import urllib.parse
from collections.abc import Callable, Mapping

import click

from switchyard import settings
from switchyard.settings import KEY, SettingsError

ANY = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # wildcard address -> loopback address


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def url_of_settings() -> str:
    """The URL for the address in the settings. Raises click.UsageError."""
    try:
        bind = settings.bind()
    except SettingsError as error:
        raise click.UsageError(str(error)) from None
    if bind.startswith("fd://"):
        raise click.UsageError(f"the server listens on {bind}: give its --url")
    if bind.startswith("unix:"):
        return bind
    host, _, port = bind.rpartition(":")
    return f"http://{ANY.get(host, host)}:{port}"


def connect(
    url: str, timeout: float, context: ssl.SSLContext | None = None
) -> tuple[http.client.HTTPConnection, str]:
    """Returns a connection, and the prefix of its paths. `url`: http://, https:// or unix:PATH.
    `timeout`: seconds to wait for each byte. `context`: the context for TLS, or None to check the
    certificate. Raises click.UsageError.
    """
    if url.startswith("unix:"):
        return _UnixConnection(url.removeprefix("unix:"), timeout), ""
    parts = urllib.parse.urlsplit(url)
    if not re.fullmatch("https?", parts.scheme) or not parts.netloc:
        raise click.UsageError(f"--url {url}: must be http://HOST:PORT, https://… or unix:PATH")
    prefix = parts.path.rstrip("/")
    if parts.scheme == "https":
        return http.client.HTTPSConnection(parts.netloc, timeout=timeout, context=context), prefix
    return http.client.HTTPConnection(parts.netloc, timeout=timeout), prefix


def ask(
    base: str,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: object = None,
    timeout: float = 30,
    each: Callable[[bytes], None] = lambda line: None,
) -> bytes:
    """Returns the body of a successful response. Otherwise the process exits with a message.
    `body`: sent as JSON unless it is None. `timeout`: seconds to wait for each byte. `each` is
    called with each line as it arrives.
    """
    connection, prefix = connect(base, timeout)
    sent = dict(headers or {})
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        sent["Content-Type"] = "application/json"
    try:
        connection.request(method, f"{prefix}{path}", data, sent)
        answer = b""
        with connection.getresponse() as response:
            for line in response:
                answer += line
                each(line)
    except (OSError, http.client.HTTPException) as error:
        click.echo(f"switchyard: {base} can't be reached: {error}{_cure(error)}", err=True)
        sys.exit(1)
    finally:
        connection.close()
    if response.status >= 400:
        told = _message(answer) or response.reason
        if response.status == 401:
            told += f" (--key, or {KEY} in the environment)"
        click.echo(f"switchyard: {base}: {response.status}: {told}", err=True)
        sys.exit(1)
    return answer


@click.command()
@click.option("--url", help="URL of the server. Default: the address in the settings.")
def drain(url: str | None) -> None:
    """Let this machine's server finish its requests and end.

    Returns immediately. The server exits after its last request, or after the number of seconds in
    the `grace` setting.
    """
    base = url or url_of_settings()
    ask(base, "POST", "/admin/drain")
    click.echo(f"{base} is draining")


def _cure(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "; SSL_CERT_FILE=FILE in the environment names the CA's certificate"
    if isinstance(error, http.client.RemoteDisconnected):
        return "; if the server has TLS, use --url https://HOST:PORT"
    return ""


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return ""
