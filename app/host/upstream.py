"""Sends HTTP requests to a Switchyard server. A thread that waits for a response keeps checking its
own client.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Mapping
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
import requests.adapters
import urllib3

from switchyard import engine
from switchyard.app.delivery.watch import LOOK
from switchyard.app.host.patient import (
    WAITING,
    InterruptedWait,
    Look,
    PatientPool,
    PatientTLSPool,
)
from switchyard.app.host.worker import hint
from switchyard.settings import SettingsError

logger = logging.getLogger(__name__)

CONNECT = 5.0  # seconds to connect, and for the server to accept each part of a request
MAX_IDLE = 64  # connections kept for later requests
PIECE = 65536  # maximum number of bytes read at once
RETRY = 1.0  # seconds to wait before an unreachable server is tried again


class Upstream:
    """One server. Any thread may use it. Each process has its own connections."""

    def __init__(self, url: str, key: str | None) -> None:
        """`url`: without the API's `/v1`. Raises SettingsError."""
        parsed = urllib3.util.parse_url(url)
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
            raise SettingsError(f"url: {url!r} must be http://HOST:PORT or https://HOST", "url")
        if parsed.path and parsed.path.rstrip("/").endswith("/v1"):
            raise SettingsError(f"url: {url!r} must be the server's address, without /v1", "url")
        self.url = url.rstrip("/")
        self._key = key
        self._adapter: requests.adapters.BaseAdapter | None = None  # replaces the server in tests
        self._lock = threading.Lock()  # guards the fields below
        self._session: requests.Session | None = None
        self._process: int | None = None  # the process that created the session

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def send(
        self, method: str, path: str, headers: Mapping[str, str], data: bytes, look: Look
    ) -> "Incoming":
        """Sends a request, and waits for the response's headers. The caller closes the response.

        `look` is called during the wait; its exception ends the wait. Raises engine.Dead if the
        server can't be reached, and engine.Closed if the connection is lost.
        """
        hint(has_models=False)
        try:
            return self._send(method, path, headers, data, look)
        except _Lost as lost:
            # The server may have closed an idle connection in the meantime, so a new one may work.
            logger.debug("%s: %s; trying once more", self.url, lost)
        try:
            return self._send(method, path, headers, data, look)
        except _Lost as lost:
            raise _closed(self.url, lost) from lost

    def close(self) -> None:
        """Closes idle connections. Running requests continue."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    @property
    def is_replaced(self) -> bool:
        """Whether a mounted adapter replaces the server. A retry would get the same response."""
        return self._adapter is not None

    def mount(self, adapter: requests.adapters.BaseAdapter | None) -> None:
        """Makes `adapter` respond in place of the server, for this process only. If `adapter` is
        None, the server responds again. Used by tests of host applications.
        """
        self.close()
        self._adapter = adapter

    def _send(
        self, method: str, path: str, headers: Mapping[str, str], data: bytes, look: Look
    ) -> "Incoming":
        WAITING.look = look
        try:
            answer = self._open().request(
                method,
                f"{self.url}{path}",
                headers=headers,
                data=data or None,
                stream=True,
                allow_redirects=False,
                timeout=(CONNECT, LOOK),  # LOOK only limits each read of a patient socket
            )
            return Incoming(answer, self.url, getattr(WAITING, "connection", None))
        except InterruptedWait as reason:
            raise reason.error from None
        except requests.ConnectionError as reason:
            cause = reason.args[0] if reason.args else None
            if isinstance(cause, urllib3.exceptions.ProtocolError):
                error = _closed(self.url, cause) if WAITING.is_fresh else _Lost(str(cause))
                raise error from cause
            logger.warning("%s can't be reached: %s", self.url, _what_failed(reason))
            raise engine.Dead("the models' server can't be reached", RETRY) from reason
        except requests.RequestException as reason:
            logger.warning("%s doesn't answer: %s", self.url, _what_failed(reason))
            raise engine.Dead("the request to the models' server failed", RETRY) from reason
        finally:
            WAITING.__dict__.clear()

    def _open(self) -> requests.Session:
        with self._lock:
            if self._session is None or self._process != os.getpid():
                self._session, self._process = requests.Session(), os.getpid()
                self._session.headers.clear()
                self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
                self._session.trust_env = False  # ignores proxies in the environment, and ~/.netrc
                self._session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
                adapter = self._adapter or _Adapter(pool_maxsize=MAX_IDLE)
                for scheme in ("http://", "https://"):
                    self._session.mount(scheme, adapter)
            return self._session


class Incoming:
    """A response whose headers have arrived. Only one thread at a time may use it, except that any
    thread may call `drop`.
    """

    def __init__(
        self, answer: requests.Response, url: str, connection: socket.socket | None
    ) -> None:
        self.status = answer.status_code
        self.headers = answer.headers
        self._answer = answer
        self._url = url
        self._connection = connection
        self._is_dropped = False

    def read(self) -> bytes:
        """Waits for the next bytes of the body, and returns them undecoded. Returns empty bytes at
        the end of the body.

        Raises engine.Closed if the connection is lost, or the exception that the request's `look`
        raises.
        """
        try:
            return bytes(self._answer.raw.read1(PIECE, decode_content=False))
        except InterruptedWait as reason:
            raise reason.error from None
        except (urllib3.exceptions.HTTPError, OSError) as reason:
            if not self._is_dropped:
                logger.warning(
                    "the connection to %s was lost during its response: %s", self._url, reason
                )
            raise engine.Closed(
                "the connection to the models' server was lost during its response"
            ) from reason

    def read_all(self, limit: int = 1 << 20) -> bytes:
        """Reads at most about `limit` bytes of the body, and closes the response."""
        parts: list[bytes] = []
        try:
            while sum(map(len, parts)) < limit and (part := self.read()):
                parts.append(part)
        finally:
            self.close()
        return b"".join(parts)

    def close(self) -> None:
        """Closes the response. If the body has not been read to its end, this also closes the
        connection, and the server cancels the jobs.
        """
        self._answer.close()

    def drop(self) -> None:
        """Like `close`, but takes no lock. A thread that is reading gets an error."""
        self._is_dropped = True
        if self._connection is not None:
            with contextlib.suppress(OSError):  # the connection may be closed already
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()


class _Lost(Exception):
    """A connection that was kept open ended before a response began."""


def _what_failed(error: requests.RequestException) -> str:
    """The reason, without the request's path and query, which may hold a prompt."""
    cause = error.args[0] if error.args else None
    return str(getattr(cause, "reason", None) or type(error).__name__)


def _closed(url: str, reason: Exception) -> engine.Closed:
    logger.warning("%s has closed the connection: %s", url, reason)
    return engine.Closed("the models' server has closed the connection")


class _Adapter(requests.adapters.HTTPAdapter):
    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **more)
        self.poolmanager.pool_classes_by_scheme = {"http": PatientPool, "https": PatientTLSPool}

    def close(self) -> None:
        pools = self.poolmanager.pools
        # Otherwise a pool closes only when its last answer is closed.
        for key in list(pools.keys()):
            pools[key].close()
        super().close()
