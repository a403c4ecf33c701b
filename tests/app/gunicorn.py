"""gunicorn's way from an application to a socket, without its worker."""

import http.client
import socket
import struct
import threading
import types

from gunicorn.config import Config
from gunicorn.http.wsgi import Response

HOP_BY_HOP = ("connection", "transfer-encoding")


class Connection:
    """A real one: `environ` is what a server would show of its end, `client` the other end."""

    def __init__(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.client = socket.create_connection(listener.getsockname())
            self.server, _ = listener.accept()
        self.environ = {"gunicorn.socket": self.server}

    def reset(self):
        self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.client.close()


class OverGunicorn:
    """A WSGI application that has another's answers written to a socket by their own thread,
    as gunicorn does, and reads them there.
    """

    def __init__(self, application):
        self.bodies = []
        self.application = application
        self.make_connection = Connection
        self.version = (1, 1)

    def __call__(self, environ, start_response):
        if environ["REQUEST_METHOD"] == "HEAD" or "gunicorn.socket" in environ:
            return self.application(environ, start_response)
        environ.pop("flask._preserve_context", None)  # it may be taken down by its own thread only
        body = Body(self.application, environ, self.make_connection(), self.version)
        self.bodies.append(body)
        start_response(body.status, body.headers)
        return body

    def close(self):
        for body in self.bodies:
            body.close()


class Body:
    """What the client reads, chunk by chunk. `server`: gunicorn's response."""

    def __init__(self, application, environ, connection, version):
        self.connection = connection
        request = types.SimpleNamespace(
            version=version, method=environ["REQUEST_METHOD"], should_close=lambda: False
        )
        self.server = Response(request, connection.server, Config())
        args = (application, {**environ, **connection.environ}, self.server)
        self._thread = threading.Thread(target=serve, args=args)
        self._thread.start()
        self._response = http.client.HTTPResponse(connection.client)
        self._response.begin()
        self.status = f"{self._response.status} {self._response.reason}"
        headers = self._response.getheaders()
        self.headers = [(k, v) for k, v in headers if k.lower() not in HOP_BY_HOP]

    def __iter__(self):
        while data := self._response.read1(1 << 20):
            yield data
        self.close()

    def close(self):
        self._response.close()
        self.connection.client.close()  # with data that was not read, the server gets a reset
        self._thread.join(20)
        assert not self._thread.is_alive()


def serve(application, environ, response):
    """As gunicorn.workers.gthread does."""
    try:
        pieces = application(environ, response.start_response)
        try:
            for piece in pieces:
                response.write(piece)
            response.close()
        finally:
            pieces.close()
    except OSError:
        pass  # the client has left
    finally:
        response.sock.close()
