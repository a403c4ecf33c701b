"""Streams that gunicorn does not write plainly: the request thread writes them."""

import socket

import pytest

from tests.app import gunicorn
from tests.app.conftest import Connection
from tests.scripted import count

URL = "/v1/completions"
STREAM = {"prompt": "x", "max_tokens": 3, "stream": True}


@pytest.fixture
def way():
    return "gunicorn"


def server_of(client):
    return client.application.wsgi_app


def read(client, held):
    """All of a stream, the first part before the jobs go on."""
    parts = iter(client.post(URL, json=STREAM).response)
    first = next(parts)
    held.set()
    return b"".join([first, *parts])


def test_to_a_client_of_http_1_0_the_request_thread_writes(make_client, held):
    client = make_client(held(count))
    server_of(client).version = (1, 0)
    *events, end = read(client, held).split(b"\n\n")
    assert len(events) == 5 and all(event.startswith(b"data: ") for event in events)
    assert end == b""


class OtherResponse(gunicorn.Response):
    """As HTTP/2 has one: another class of gunicorn's."""


class Wrapped(Connection):
    """As TLS has one: a socket of another class."""

    def __init__(self):
        super().__init__()
        self.server = OtherSocket(fileno=self.server.detach())
        self.environ = {"gunicorn.socket": self.server}


class OtherSocket(socket.socket):
    pass


class Hidden(Connection):
    def __init__(self):
        super().__init__()
        self.environ = {}


@pytest.mark.parametrize("other", [OtherResponse, Wrapped, Hidden])
def test_where_gunicorn_writes_in_another_way_the_request_thread_does(
    make_client, held, handed_over, monkeypatch, other
):
    client = make_client(held(count))
    if other is OtherResponse:
        monkeypatch.setattr(gunicorn, "Response", other)
    else:
        server_of(client).make_connection = other
    assert read(client, held).count(b"data: ") == 5
    assert not handed_over.acquire(blocking=False)


class Upper:
    def __init__(self, parts):
        self._parts = parts
        self.close = parts.close

    def __iter__(self):
        return (part.upper() for part in self._parts)


@pytest.mark.parametrize("where", ["middleware", "view"])
def test_what_wraps_the_body_sees_all_of_it(make_client, held, where):
    client = make_client(held(count))
    server = server_of(client)
    application = server.application

    def loud(environ, start_response):
        return Upper(application(environ, lambda *args: start_response(*args)))

    def wrap(response):
        response.response = (part.upper() for part in response.response)
        return response

    if where == "middleware":
        server.application = loud
    else:
        client.application.after_request(wrap)
    data = read(client, held)
    assert data.count(b'"TEXT"') == 4 and b'"text"' not in data
