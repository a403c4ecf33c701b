"""A WebSocket's connection, with its two threads in a forced order."""

import re
import socket
import threading

import pytest
import simple_websocket
import wsproto
from wsproto.events import AcceptConnection, CloseConnection, Request

from switchyard.app.exceptions import ClientGone
from switchyard.app.formats.websocket.connection import Connection, SharedSocket


class Slow(SharedSocket):
    """What it sends, once told to hurry no more, waits until the other thread has had its turn."""

    def __init__(self, server_socket):
        super().__init__(server_socket)
        self.is_slow = False
        self.had_turn = threading.Event()

    def send(self, data):
        if self.is_slow:
            assert self.had_turn.wait(20)
        return super().send(data)

    def end(self):
        super().end()
        self.had_turn.set()


class Joined:
    """A thread that tells when it is waited for."""

    def __init__(self, thread, had_turn):
        self._thread = thread
        self._had_turn = had_turn
        self.is_alive = thread.is_alive

    def join(self, timeout=None):
        self._had_turn.set()
        self._thread.join(timeout)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    theirs.settimeout(20)
    with ours, theirs:
        yield Slow(ours), theirs


def events_from(client, theirs):
    """Until the server ends."""
    while data := theirs.recv(65536):
        client.receive_data(data)
        yield from client.events()


def test_a_clients_closing_frame_is_answered_whichever_thread_comes_first(pair):
    shared, theirs = pair
    client = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
    handshake = client.send(Request(host="localhost", target="/"))
    [key] = re.findall(rb"(?i)sec-websocket-key: (.+)\r", handshake)
    environ = {
        "gunicorn.socket": shared,
        "HTTP_HOST": "localhost",
        "HTTP_CONNECTION": "Upgrade",
        "HTTP_UPGRADE": "websocket",
        "HTTP_SEC_WEBSOCKET_VERSION": "13",
        "HTTP_SEC_WEBSOCKET_KEY": key.decode(),
    }
    websocket = simple_websocket.Server(environ)
    connection = Connection(websocket, 1000, heartbeat=60)
    client.receive_data(theirs.recv(65536))
    assert [type(event) for event in client.events()] == [AcceptConnection]
    shared.is_slow = True
    websocket.thread = Joined(websocket.thread, shared.had_turn)
    theirs.sendall(client.send(CloseConnection(1000, "bye")))
    connection.wait(20)
    with pytest.raises(ClientGone):
        list(connection.messages())
    connection.close(1001, "")
    [answer] = events_from(client, theirs)
    assert isinstance(answer, CloseConnection) and answer.code == 1000
