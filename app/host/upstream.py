"""HTTP to a Switchyard server. A thread that waits for it goes on to look after its own client."""

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
from switchyard.app.sources import SettingsError

logger = logging.getLogger(__name__)

CONNECT = 5.0  # seconds to be connected, and for each part of a request to be taken
MAX_IDLE = 64  # connections kept for the next requests
PIECE = 65536  # bytes read at once, at most
RETRY = 1.0  # seconds after which a server that is not there may be


class Upstream:
    """One server. Any thread; each process has connections of its own."""

    def __init__(self, url: str, key: str | None) -> None:
        """`url`: without what the API's paths begin with. Raises SettingsError."""
        parsed = urllib3.util.parse_url(url)
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
            raise SettingsError(f"url: {url!r} must be http://HOST:PORT or https://HOST", "url")
        self.url = url.rstrip("/")
        self._key = key
        self._adapter: requests.adapters.BaseAdapter | None = None  # in the server's place
        self._lock = threading.Lock()  # guards what follows
        self._session: requests.Session | None = None
        self._process: int | None = None  # that has it

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def send(
        self, method: str, path: str, headers: Mapping[str, str], data: bytes, look: Look
    ) -> "Incoming":
        """The answer, once its head is there; close it. Raises engine.Dead for a server that can't
        be reached, engine.Closed for one that is lost, or what `look` does.
        """
        hint(has_models=False)
        try:
            return self._send(method, path, headers, data, look)
        except _Lost as lost:
            # It may only be that the server has ended since then what was kept.
            logger.debug("%s: %s; once more", self.url, lost)
        try:
            return self._send(method, path, headers, data, look)
        except _Lost as lost:
            raise _closed(self.url, lost) from None

    def close(self) -> None:
        """What runs is not cut off."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    @property
    def is_replaced(self) -> bool:
        """Whether what answers is not the server, and so answers the same once more."""
        return self._adapter is not None

    def mount(self, adapter: requests.adapters.BaseAdapter | None) -> None:
        """Have this answer in the server's place, in this process; None: no longer."""
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
                timeout=(CONNECT, LOOK),  # the latter of each look, not of the answer
            )
            return Incoming(answer, self.url, getattr(WAITING, "connection", None))
        except InterruptedWait as reason:
            raise reason.error from None
        except requests.ConnectionError as reason:
            cause = reason.args[0] if reason.args else None
            if isinstance(cause, urllib3.exceptions.ProtocolError):
                error = _closed(self.url, cause) if WAITING.is_fresh else _Lost(str(cause))
                raise error from None
            raise engine.Dead(f"{self.url} can't be reached: {reason}", RETRY) from None
        except requests.RequestException as reason:
            raise engine.Dead(f"{self.url} can't be asked: {reason}", RETRY) from None
        finally:
            WAITING.__dict__.clear()

    def _open(self) -> requests.Session:
        with self._lock:
            if self._session is None or self._process != os.getpid():
                self._session, self._process = requests.Session(), os.getpid()
                self._session.headers.clear()
                self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
                self._session.trust_env = False  # neither its proxies nor a password of ~/.netrc
                self._session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
                adapter = self._adapter or _Adapter(pool_maxsize=MAX_IDLE)
                for scheme in ("http://", "https://"):
                    self._session.mount(scheme, adapter)
            return self._session


class Incoming:
    """An answer whose head is there. One thread at a time."""

    def __init__(
        self, answer: requests.Response, url: str, connection: socket.socket | None
    ) -> None:
        self.status = answer.status_code
        self.headers = answer.headers
        self._answer = answer
        self._url = url
        self._connection = connection

    def read(self) -> bytes:
        """What has come of the body, as it came; waits for more. Empty at its end. Raises
        engine.Closed for a server that is lost, or what the `look` of its request does.
        """
        try:
            return bytes(self._answer.raw.read1(PIECE, decode_content=False))
        except InterruptedWait as reason:
            raise reason.error from None
        except (urllib3.exceptions.HTTPError, OSError) as reason:
            raise engine.Closed(f"{self._url} was lost during its answer: {reason}") from None

    def read_all(self, limit: int = 1 << 20) -> bytes:
        """The body, or so much of it, and the end."""
        parts: list[bytes] = []
        try:
            while sum(map(len, parts)) < limit and (part := self.read()):
                parts.append(part)
        finally:
            self.close()
        return b"".join(parts)

    def close(self) -> None:
        """Where the body is not at its end the connection is, and the server cancels its jobs."""
        self._answer.close()

    def drop(self) -> None:
        """The same, without any lock, for one that nobody will read or close."""
        if self._connection is not None:
            with contextlib.suppress(OSError):  # it was closed
                self._connection.shutdown(socket.SHUT_RDWR)
            self._connection.close()


class _Lost(Exception):
    """A connection kept from before has ended before an answer began."""


def _closed(url: str, reason: Exception) -> engine.Closed:
    return engine.Closed(f"{url} has closed the connection: {reason}")


class _Adapter(requests.adapters.HTTPAdapter):
    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **more)
        self.poolmanager.pool_classes_by_scheme = {"http": PatientPool, "https": PatientTLSPool}

    def close(self) -> None:
        pools = self.poolmanager.pools
        for key in list(pools.keys()):  # else each is, once the last answer of it is forgotten
            pools[key].close()
        super().close()
