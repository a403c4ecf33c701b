"""A response that goes on, written by its request thread or by the sender."""

import socket
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import flask

from switchyard.app.delivery.output import Output
from switchyard.app.delivery.sender import Outlet, Sender
from switchyard.app.http.client import Client

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


class Streamed(flask.Response):
    """Behind the first text the sender writes it, if nobody stands between it and the socket."""

    def __init__(self, output: Output, sender: Sender, send_timeout: float, mimetype: str) -> None:
        self._pieces = self._write(output, sender, send_timeout)
        self._server: Any = None  # gunicorn's end of this response, if that is on a plain socket
        super().__init__(self._pieces, mimetype=mimetype)

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        pieces, status, headers = self.get_wsgi_response(environ)
        start_response(status, headers)
        if self.response is self._pieces:  # else something of the application takes part
            self._server = _plain_server(start_response)
        return pieces

    def _write(self, output: Output, sender: Sender, send_timeout: float) -> Iterator[bytes]:
        while True:
            piece = output.take(time.monotonic())
            if piece is not None:
                yield piece  # the first has the head written, even if it is empty
            if output.is_finished:
                return
            if self._server is not None and output.has_begun:
                break
            output.wait()
        client = Client({"gunicorn.socket": self._server.sock})
        outlet = Outlet(output, client, send_timeout)
        try:
            sender.send(outlet)
        finally:
            self._server.sent += outlet.num_bytes  # for its access log


def _plain_server(start_response: "StartResponse") -> Any:
    """gunicorn's own response, whose method this is, if it writes chunks to a plain socket; else
    None. A middleware that changes what is written has a function of its own there.
    """
    server: Any = getattr(start_response, "__self__", None)
    kind = type(server)  # HTTP/2 has another one
    if f"{kind.__module__}.{kind.__name__}" != "gunicorn.http.wsgi.Response":
        return None
    is_plain = server.chunked and type(server.sock) is socket.socket
    return server if is_plain else None
