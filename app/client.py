"""The other end of a request's connection, as far as the server that runs us shows it."""

import errno
import select
import socket
from collections.abc import Mapping
from typing import Any, Literal

Presence = Literal["there", "half-closed", "gone"]

_HAS_LEFT = select.POLLERR | select.POLLHUP | select.POLLNVAL if hasattr(select, "poll") else 0
_END_OF_FILE = getattr(select, "POLLRDHUP", 0)  # Linux only


class ClientGone(ConnectionResetError):
    """Nobody waits for the answer any more. As a server's own finding when a write fails."""

    def __init__(self) -> None:
        super().__init__(errno.ECONNRESET, "the client has left")


class Client:
    """gunicorn and werkzeug show the socket, waitress says whether it has closed. Where there is
    neither, or no way to ask the socket, a client counts as there until a write to it fails.
    """

    def __init__(self, environ: Mapping[str, Any]) -> None:
        self._socket: socket.socket | None = environ.get("gunicorn.socket") or environ.get(
            "werkzeug.socket"
        )
        self._is_disconnected = environ.get("waitress.client_disconnected")
        self._poll = None
        if self._socket is not None and _END_OF_FILE:
            # Not a peek at the data: that misses the end of file behind a pipelined request, and
            # TLS sockets refuse it.
            self._poll = select.poll()
            self._poll.register(self._socket, _END_OF_FILE)

    def look(self) -> Presence:
        """Never waits.

        `half-closed`: it sends nothing more. To whoever reads on, or has closed the connection:
        they look the same until something is written, which the latter answers with a reset.
        """
        if self._poll is not None:
            for _, flags in self._poll.poll(0):
                return "gone" if flags & _HAS_LEFT else "half-closed"
        elif self._is_disconnected is not None and self._is_disconnected():
            return "gone"
        return "there"
