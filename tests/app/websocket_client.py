"""A client of /v1/stream in the process of a test, over a pair of sockets."""

import contextlib
import json
import re
import socket
import threading

import wsproto
from wsproto.events import CloseConnection, Request, TextMessage


def handshake(protocol, **more):
    """The headers of a request for one."""
    head = protocol.send(Request(host="localhost", target="/v1/stream", **more)).decode()
    return dict(re.findall(r"(.+?): (.+)\r\n", head))


class Client:
    """`application`: Flask's, which is called in a thread."""

    def __init__(self, application):
        self._ours, self._theirs = socket.socketpair()
        self._theirs.settimeout(20)
        self._protocol = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        shown = {"werkzeug.socket": self._ours}
        headers = handshake(self._protocol)
        request = {"path": "/v1/stream", "headers": headers, "environ_overrides": shown}
        call = application.test_client().get
        self._thread = threading.Thread(target=call, kwargs=request, daemon=True)
        self._thread.start()
        self._events = self._read()
        next(self._events)  # the handshake's

    def _read(self):
        while data := self._theirs.recv(65536):
            self._protocol.receive_data(data)
            yield from self._protocol.events()

    def send(self, type, id, **more):
        message = json.dumps({"type": type, "id": id, **more})
        self._theirs.sendall(self._protocol.send(TextMessage(message)))

    def messages(self):
        for event in self._events:
            if isinstance(event, TextMessage):
                yield json.loads(event.data)
        raise AssertionError("the connection has ended")

    def receive(self):
        """The next message that isn't text of an answer."""
        return next(message for message in self.messages() if message["type"] != "chunk")

    def receive_closing(self):
        return next(event.code for event in self._events if isinstance(event, CloseConnection))

    def join(self):
        self._thread.join(20)
        assert not self._thread.is_alive()

    def close(self):
        with contextlib.suppress(OSError, wsproto.utilities.LocalProtocolError):  # closed already
            self._theirs.sendall(self._protocol.send(CloseConnection(1000)))
        self.join()
        for one in (self._ours, self._theirs):
            one.close()
