"""Streams that the sender writes, to sockets as gunicorn has them."""

import socket
import threading
import time

import pytest

import app.streamed
from engine.messages import Chunk, Started
from tests.app.conftest import Connection, frames, wait_until_empty
from tests.scripted import ScriptedBackend, endless, finished

URL = "/v1/completions"
STREAM = {"prompt": "x", "max_tokens": 3, "stream": True}
LONG = {**STREAM, "max_tokens": 1900}


@pytest.fixture
def way():
    return "gunicorn"


@pytest.fixture
def handed_over(monkeypatch):
    """Released for each stream that a sender is given."""
    handed_over = threading.Semaphore(0)
    make = app.streamed.Outlet

    def note(*args):
        handed_over.release()
        return make(*args)

    monkeypatch.setattr(app.streamed, "Outlet", note)
    return handed_over


BEGUN = 2  # iterations until a job has text


class Small(Connection):
    """One that holds some kilobytes."""

    def __init__(self):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            self.client = socket.socket()
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            self.client.connect(listener.getsockname())
            self.server, _ = listener.accept()
        self.environ = {"gunicorn.socket": self.server}


def server_of(client):
    return client.application.wsgi_app


def in_pieces(size, count):
    """After a short one, so many texts of that size."""

    def script(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "begin", (0,))
        for i in range(count):
            yield Chunk(job.identifier, str(i % 10) * size, (i,))
        yield finished(job, count)

    return script


def test_the_sender_writes_all_behind_the_first_text(make_client, gate, handed_over):
    client = make_client(ScriptedBackend(gate=gate))
    gate.step(BEGUN)
    response = client.post(URL, json=STREAM)
    assert handed_over.acquire(timeout=20)
    gate.open()
    assert [f["choices"][0]["text"] for f in frames(response)] == ["0 ", "1 ", "2 ", ""]
    assert server_of(client).bodies[0].server.sent == len(response.data)  # for the access log


def test_what_the_socket_does_not_take_at_once_follows(make_client, gate, handed_over):
    client = make_client(ScriptedBackend(in_pieces(100_000, 20), gate=gate))
    server_of(client).make_connection = Small
    gate.step(BEGUN)
    response = client.post(URL, json=LONG, headers={"Accept": "text/plain"})
    assert handed_over.acquire(timeout=20)
    gate.open()
    assert response.text == "begin" + "".join(str(i % 10) * 100_000 for i in range(20))


def test_a_reader_that_has_stopped_holds_no_other_up(make_client, gate, handed_over):
    client = make_client(ScriptedBackend(in_pieces(100_000, 20), gate=gate))
    server_of(client).make_connection = Small
    gate.step(BEGUN)
    stopped = client.post(URL, json=LONG)
    server_of(client).make_connection = Connection
    gate.step(BEGUN)
    other = client.post(URL, json=LONG)
    assert [handed_over.acquire(timeout=20) for _ in "12"] == [True, True]
    gate.open()
    assert len(frames(other)) == len(frames(stopped)) == 22


def test_a_frame_that_can_not_be_written_ends_its_stream_alone(make_client, gate):
    def script(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "fine", (0,))
        yield Chunk(job.identifier, "\ud800" if job.max_new_tokens == 3 else "too", (0,))
        yield finished(job, 2)

    client = make_client(ScriptedBackend(script, gate=gate))
    gate.step(BEGUN)
    broken = client.post(URL, json=STREAM)
    gate.step(BEGUN)
    other = client.post(URL, json={**STREAM, "max_tokens": 4})
    gate.open()
    assert frames(broken)[-1]["error"]["code"] == "internal_error"
    assert [f["choices"][0]["text"] for f in frames(other)] == ["fine", "too", ""]


def test_a_client_that_leaves_has_its_jobs_cancelled(make_client):
    client = make_client(ScriptedBackend(endless), heartbeat=3600)
    response = client.post(URL, json=LONG)
    next(iter(response.response))
    response.close()
    wait_until_empty(client)


def test_a_client_that_leaves_is_noticed_while_nothing_comes(make_client, gate, handed_over):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=3600)
    gate.step(BEGUN)
    response = client.post(URL, json=LONG)
    assert handed_over.acquire(timeout=20)
    response.close()  # which waits for the request's thread
    gate.open()
    wait_until_empty(client)


def test_a_client_that_stops_reading_is_cut_off(make_client):
    client = make_client(ScriptedBackend(endless), send_timeout=0.5)
    server_of(client).make_connection = Small
    response = client.post(URL, json=LONG)
    wait_until_empty(client)
    with pytest.raises(ConnectionError):
        response.get_data()


def test_a_client_that_reads_slowly_is_not(make_client):
    client = make_client(ScriptedBackend(in_pieces(1000, 60)), send_timeout=0.5)
    server_of(client).make_connection = Small
    response = client.post(URL, json=LONG)
    [body] = server_of(client).bodies
    body.connection.client.settimeout(20)
    received = []
    for data in response.response:
        received.append(data)
        time.sleep(0.05)  # 3 seconds in all
    assert received[-1].endswith(b"data: [DONE]\n\n")


def test_heartbeats_come_between_texts(make_client, gate):
    client = make_client(ScriptedBackend(gate=gate), heartbeat=0.05)
    gate.step(BEGUN)
    pieces = iter(client.post(URL, json=STREAM).response)
    assert b'"text":"0 "' in next(pieces)
    assert next(pieces) == next(pieces) == b": heartbeat\n\n"
    gate.open()
    assert b"".join(pieces).endswith(b"data: [DONE]\n\n")


def test_to_a_client_of_http_1_0_the_request_thread_writes(make_client, handed_over):
    client = make_client(ScriptedBackend())
    server_of(client).version = (1, 0)
    assert len(frames(client.post(URL, json=STREAM))) == 4
    assert not handed_over.acquire(timeout=0)


def test_a_middleware_that_changes_the_body_sees_all_of_it(make_client, handed_over):
    client = make_client(ScriptedBackend())
    application = server_of(client).application

    def loud(environ, start_response):
        def start(status, headers, exc_info=None):
            return start_response(status, headers, exc_info)

        return Upper(application(environ, start))

    server_of(client).application = loud
    response = client.post(URL, json=STREAM)
    assert response.text.count('"TEXT"') == 4 and '"text"' not in response.text
    assert not handed_over.acquire(timeout=0)


def test_a_view_function_that_wraps_the_body_sees_all_of_it(make_client, handed_over):
    client = make_client(ScriptedBackend())

    def wrap(response):
        response.response = (part.upper() for part in response.response)
        return response

    client.application.after_request(wrap)
    response = client.post(URL, json=STREAM)
    assert response.text.count('"TEXT"') == 4
    assert not handed_over.acquire(timeout=0)


class Upper:
    def __init__(self, parts):
        self._parts = parts

    def __iter__(self):
        return (part.upper() for part in self._parts)

    def close(self):
        self._parts.close()


def test_many_streams_have_one_thread(make_client, gate, handed_over):
    client = make_client(ScriptedBackend(gate=gate))
    responses = []
    for _ in range(8):
        gate.step(BEGUN)
        responses.append(client.post(URL, json=LONG))
    assert [handed_over.acquire(timeout=20) for _ in responses]
    assert [thread.name for thread in threading.enumerate()].count("sender") == 1
    gate.open()
    for response in responses:
        assert len(frames(response)) == 1901
