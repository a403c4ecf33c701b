"""A WebSocket's connection, with its two threads in a forced order, and its own clock."""

import json
import re
import socket
import threading
from types import SimpleNamespace

import pytest
import simple_websocket
import wsproto
from wsproto.events import AcceptConnection, CloseConnection, Ping, Request, TextMessage

from switchyard.app.exceptions import ClientGone
from switchyard.app.formats.websocket.connection import MAX_UNREAD, Connection, SharedSocket


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
def pair(ends):
    ours, theirs = ends
    return Slow(ours), theirs


def events_from(client, theirs):
    """Until the server ends."""
    while data := theirs.recv(65536):
        client.receive_data(data)
        yield from client.events()


@pytest.fixture
def opened(pair):
    """A connection of a heartbeat of 10 s, and the client at its other end."""
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
    connection = Connection(websocket, 1000, heartbeat=10)
    client.receive_data(theirs.recv(65536))
    assert [type(event) for event in client.events()] == [AcceptConnection]
    return connection, websocket, client


def test_a_clients_closing_frame_is_answered_whichever_thread_comes_first(pair, opened):
    shared, theirs = pair
    connection, websocket, client = opened
    shared.is_slow = True
    websocket.thread = Joined(websocket.thread, shared.had_turn)
    theirs.sendall(client.send(CloseConnection(1000, "bye")))
    connection.wait(20)
    with pytest.raises(ClientGone):
        list(connection.messages())
    connection.close(1001, "")
    [answer] = events_from(client, theirs)
    assert isinstance(answer, CloseConnection) and answer.code == 1000


def test_pings_are_a_heartbeat_apart_and_from_all_else_that_is_sent(pair, opened, monkeypatch):
    _, theirs = pair
    connection, _, client = opened
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("switchyard.app.formats.websocket.connection.time", clock)
    connection.send({})
    client.receive_data(theirs.recv(65536))
    assert len(list(client.events())) == 1
    pinged = []
    for now in (1000.25, 1009.0, 1010.5, 1010.75, 1020.0, 1021.0, 1030.75, 1031.0):
        connection.keep_alive()
        theirs.setblocking(False)
        try:
            client.receive_data(theirs.recv(65536))
            pinged += [now for event in client.events() if isinstance(event, Ping)]
        except BlockingIOError:
            pass
    theirs.settimeout(20)
    assert pinged == [1010.5, 1021.0, 1031.0]
    theirs.sendall(client.send(CloseConnection(1000, "bye")))
    connection.close(1001, "")


class Halting(socket.socket):
    """Sends half of the first piece at once, the rest when another thread has had its turn."""

    def __init__(self, other):
        super().__init__(fileno=other.detach())
        self.has_begun = threading.Event()
        self.had_turn = threading.Event()

    def sendall(self, data):
        if self.has_begun.is_set():
            self.send(data)
            self.had_turn.set()
            return
        self.send(data[: len(data) // 2])
        self.has_begun.set()
        self.had_turn.wait(0.2)  # which it should not get
        self.send(data[len(data) // 2 :])


def test_what_two_threads_write_does_not_mix(ends):
    ours, theirs = ends
    with Halting(ours) as halting:
        shared = SharedSocket(halting)
        other = threading.Thread(target=lambda: halting.has_begun.wait(20) and shared.send(b"bb"))
        other.start()
        shared.send(b"aaaa")
        other.join(20)
        assert theirs.recv(100) == b"aaaabb"


def test_a_client_may_send_more_in_all_than_may_wait_unread(pair, opened):
    _, theirs = pair
    connection, _, client = opened
    got = []
    for number in range(2 * MAX_UNREAD // 900):
        theirs.sendall(client.send(TextMessage(json.dumps([number, "x" * 900]))))
        while len(got) <= number:
            assert connection._websocket.event.wait(20)
            connection.wait(0)
            got += [json.loads(message)[0] for message in connection.messages()]
    assert got == list(range(len(got)))
    theirs.sendall(client.send(CloseConnection(1000, "bye")))
    connection.close(1001, "")
