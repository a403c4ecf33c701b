"""HTTP connections whose reader regularly calls a function while it waits, even before a response
begins. No HTTP library lets another thread interrupt that wait.
"""

import http.client
import io
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import urllib3

from switchyard.app.delivery.watch import LOOK

# Receives the seconds of silence so far; raises an exception to end the wait.
Look = Callable[[float], None]


class InterruptedWait(Exception):
    """Carries an exception raised by `Look` through the HTTP library, so that the library doesn't
    treat it as a network error.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Waiting(threading.local):
    """The current thread's request: its `look`, and its connection once there is a response.

    `is_fresh`: whether the connection was made for this request.
    """

    look: Look
    connection: socket.socket
    is_fresh = False


WAITING = _Waiting()


class _PatientSocket(io.RawIOBase):
    """Reads a socket whose timeout is LOOK, and calls `look` after each timeout. Keeps the socket
    open.
    """

    def __init__(self, sock: socket.socket, look: Look) -> None:
        self._sock = sock
        self._share: Any = sock.makefile("rb", buffering=0)
        self._look = look
        self._heard = self._looked = time.monotonic()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._heard = time.monotonic()  # the time between two reads doesn't count as silence
        while True:
            now = time.monotonic()
            if now - self._looked >= LOOK:
                self._looked = now
                try:
                    self._look(now - self._heard)
                except Exception as error:
                    raise InterruptedWait(error) from None
            try:
                return self._sock.recv_into(buffer)
            except TimeoutError:
                continue

    def close(self) -> None:
        if not self.closed:
            self._share.close()
            super().close()


class _PatientResponse(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
        super().__init__(sock, *args, **more)
        WAITING.connection = sock
        self.fp.close()
        self.fp = io.BufferedReader(_PatientSocket(sock, WAITING.look))


class _Connection(urllib3.connection.HTTPConnection):
    response_class = _PatientResponse

    def connect(self) -> None:
        WAITING.is_fresh = True
        super().connect()


class _TLSConnection(_Connection, urllib3.connection.HTTPSConnection):
    pass


class PatientPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class PatientTLSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TLSConnection
