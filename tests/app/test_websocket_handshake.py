"""Who gets a WebSocket at /v1/stream, in the process of the test."""

import re
import socket

import pytest
import wsproto
from wsproto.events import Request
from wsproto.extensions import PerMessageDeflate

from tests.app.test_lifecycle import events
from tests.app.test_websocket_session import connect
from tests.scripted import ScriptedBackend

__all__ = ["connect"]

URL = "/v1/stream"


def handshake(**more):
    request = Request(host="localhost", target=URL, **more)
    head = wsproto.WSConnection(wsproto.ConnectionType.CLIENT).send(request).decode()
    return dict(re.findall(r"(.+?): (.+)\r\n", head))


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    theirs.settimeout(20)
    with ours, theirs:
        yield ours, theirs


def refused(client, ours):
    """The status and code of a refusal before the handshake."""
    shown = {"werkzeug.socket": ours}
    response = client.get(URL, headers=handshake(), environ_overrides=shown)
    return response.status_code, response.json and response.json["error"]["code"]


def test_a_server_that_drains_opens_no_more(serve, pair):
    client = serve()
    assert events(client.post("/v1/model/load", json={"name": "second"}))  # is on demand
    client.models.drain()
    pair[1].shutdown(socket.SHUT_WR)
    assert refused(client, pair[0]) == (503, "overloaded")


def test_a_model_that_is_there_from_the_start_must_be_ready(make_client, pair):
    backend = ScriptedBackend()
    backend.opening.clear()
    client = make_client(backend, wait=False)
    pair[1].shutdown(socket.SHUT_WR)
    try:
        assert refused(client, pair[0]) == (503, "overloaded")
    finally:
        backend.opening.set()


def test_a_model_that_is_loaded_on_demand_need_not(serve, connect):
    client = serve()
    assert events(client.post("/v1/model/load", json={"name": "second"}))
    client.models.unload("second").wait(20)
    assert client.models.served().config.name == "second"
    assert client.models.status("second").state == "unloaded"
    connection = connect(client.application)
    connection.send("generate", 1, prompt="x", max_tokens=1)
    assert connection.receive()["type"] == "end"


def test_a_server_that_shows_no_socket_says_so(serve):
    response = serve().get(URL, headers=handshake())
    assert response.status_code == 501 and "no socket" in response.json["error"]["message"]


def test_messages_are_not_compressed(serve, pair):
    ours, theirs = pair
    headers = handshake(extensions=[PerMessageDeflate()])
    assert "Sec-WebSocket-Extensions" in headers
    theirs.shutdown(socket.SHUT_WR)  # it leaves at once
    serve().get(URL, headers=headers, environ_overrides={"werkzeug.socket": ours})
    answer = theirs.recv(65536)
    assert b" 101 " in answer and b"extensions" not in answer.lower()
