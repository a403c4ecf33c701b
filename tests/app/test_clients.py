"""Clients that leave while a response is awaited or streamed."""

import errno
import re
import socket
import struct
import sys
import threading
import types

import pytest

from switchyard.app.exceptions import ClientGone
from switchyard.app.http.client import Client
from switchyard.engine.messages import Started
from tests.app.conftest import fails, wait_until_empty
from tests.scripted import ScriptedBackend, ticking

URL = "/v1/completions"
LONG = {"prompt": "x", "max_tokens": 2000}
FOR_EVER = 3600  # seconds: no heartbeat tells anything


def leave(connection, how):
    match how:
        case "close":
            connection.client.close()
        case "reset":
            connection.reset()
        case "half-close":
            connection.client.shutdown(socket.SHUT_WR)


def ask(client, connection, accept="*/*", url=URL, **body):
    body = body if url != URL else {"prompt": "x", "max_tokens": 2000, **body}
    more = {"headers": {"Accept": accept}, "environ_overrides": connection.environ}
    return client.post(url, json=body, **more)


def option_of(connection):
    """How long the kernel waits for a client to take data, in milliseconds."""
    return connection.server.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)


def writes(response, connection):
    """As a server writes `response`, the head with the first data, even if that is empty."""
    head = b"HTTP/1.1 200 OK\r\n\r\n"
    for data in response.response:
        connection.server.sendall(head + data)
        head = b""
        yield data


def soon(call, *args):
    timer = threading.Timer(0.2, call, args)
    timer.start()
    return timer


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize("has_events", [False, True])
def test_without_streaming_a_client_that_leaves_ends_its_job(
    make_client, connection, gate, how, has_events
):
    client = make_client(ScriptedBackend(ticking) if has_events else ScriptedBackend(gate=gate))
    soon(leave, connection, how)
    assert ask(client, connection).status_code == 499
    gate.open()
    wait_until_empty(client)


def never_begun(job):
    """It has started, and its prompt takes forever."""
    while True:
        yield Started(job.identifier)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("settings", "status"), [({}, 499), ({"first_token_timeout": 0.2}, 408)])
def test_who_has_no_answer_any_more_has_no_job(make_client, connection, stream, settings, status):
    client = make_client(ScriptedBackend(never_begun), heartbeat=FOR_EVER, **settings)
    if not settings:
        soon(leave, connection, "reset")
    assert ask(client, connection, stream=stream).status_code == status
    wait_until_empty(client)


def test_a_pipelined_request_does_not_hide_that_the_client_has_left(make_client, connection, gate):
    client = make_client(ScriptedBackend(gate=gate))
    connection.client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert Client(connection.environ).look() == "there"
    soon(leave, connection, "close")
    assert ask(client, connection).status_code == 499


def test_a_reset_is_noticed_before_the_status_line(make_client, connection, gate):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=FOR_EVER)
    soon(leave, connection, "reset")
    assert ask(client, connection, stream=True).status_code == 499


@pytest.mark.parametrize("accept", ["text/event-stream", "application/x-ndjson", "text/plain"])
@pytest.mark.parametrize("is_early", [True, False], ids=["before the status line", "after it"])
def test_a_stream_whose_client_may_have_left_writes_at_once(
    make_client, connection, gate, accept, is_early
):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=FOR_EVER)
    if is_early:
        soon(leave, connection, "close")
    else:
        gate.step(2)
    response = ask(client, connection, accept, stream=True)
    if not is_early:
        soon(leave, connection, "close")
        if accept == "text/plain":  # nothing to write before the next text
            soon(gate.step, 1)
    with pytest.raises(ConnectionError):
        for _ in writes(response, connection):
            pass
    response.close()
    gate.open()
    wait_until_empty(client)


@pytest.mark.parametrize("accept", ["text/event-stream", "text/plain"])
def test_a_stream_whose_client_sends_nothing_more_is_served_to_the_end(
    make_client, connection, gate, accept
):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=FOR_EVER)
    leave(connection, "half-close")
    response = ask(client, connection, accept, max_tokens=2, stream=True)
    written = []
    for data in writes(response, connection):
        written.append(data)
        if len(written) == 3:
            gate.open()
    if accept == "text/plain":
        assert b"".join(written) == b"0 1 "
    else:
        assert written[:3] == [b": heartbeat\n\n"] * 3
        assert written[-1].endswith(b"data: [DONE]\n\n")


def test_a_response_that_fails_before_its_first_text_has_begun_for_such_a_client(
    make_client, connection, gate
):
    client = make_client(ScriptedBackend(fails(), gate), heartbeat=FOR_EVER)
    leave(connection, "half-close")
    response = ask(client, connection, url="/v1/responses", input="Hello", stream=True)
    gate.open()
    kinds = re.findall(r"^event: response\.(\w+)$", response.get_data(as_text=True), re.M)
    assert kinds == ["created", "in_progress", "failed"]


def test_servers_know_by_its_number_that_a_client_has_left():
    """Gunicorn logs an error without it as a failure of the application."""
    assert ClientGone().errno == errno.ECONNRESET


def test_waitress_says_it_by_a_function(make_client, gate):
    has_left = threading.Event()
    soon(has_left.set)
    environ = {"waitress.client_disconnected": has_left.is_set}
    client = make_client(ScriptedBackend(gate=gate))
    assert client.post(URL, json=LONG, environ_overrides=environ).status_code == 499


def test_uwsgi_shows_a_descriptor(make_client, connection, gate, monkeypatch):
    uwsgi = types.SimpleNamespace(connection_fd=connection.server.fileno)
    monkeypatch.setitem(sys.modules, "uwsgi", uwsgi)
    client = make_client(ScriptedBackend(gate=gate))
    soon(leave, connection, "close")
    response = client.post(URL, json=LONG, environ_overrides={"uwsgi.version": b"2.0"})
    assert response.status_code == 499


def limit_of(connected):
    """On what the kernel waits in a write."""
    limit = connected.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, 16)
    return struct.unpack("ll", limit)


def test_a_host_that_has_vanished_is_given_up_by_the_kernel(connection, ends):
    """Nothing that a test on one machine can do looks like that: no packet comes any more."""
    Client(connection.environ).limit_sends(7.5)
    assert (option_of(connection), limit_of(connection.server)) == (7500, (7, 500_000))
    # These have no such option, and must not be asked for it.
    Client({"gunicorn.socket": ends[0]}).limit_sends(7.5)
    assert limit_of(ends[0]) == (7, 500_000)


@pytest.mark.parametrize("takes_up", [False, True])
def test_the_kernel_gives_up_each_client_after_the_setting(make_client, connection, takes_up):
    client = make_client(send_timeout=7.5, resume_timeout=FOR_EVER)
    body, headers = {"prompt": "x", "max_tokens": 2, "stream": True}, {}
    if takes_up:
        first = client.post(URL, json=body).get_data(as_text=True)
        headers["Last-Event-ID"] = first.removeprefix("id: ").partition("\n")[0]
    more = {"environ_overrides": connection.environ, "buffered": True}
    assert client.post(URL, json=body, headers=headers, **more).status_code == 200
    assert option_of(connection) == 7500


def test_a_client_of_a_refused_request_may_not_read_for_ever_either(make_client, connection):
    assert ask(make_client(send_timeout=7.5), connection, prompt="").status_code == 400
    assert option_of(connection) == 7500
