"""Streams that the sender writes, to sockets as gunicorn has them."""

import contextlib
import gc
import socket
import threading
import time
import weakref
from unittest.mock import Mock

import pytest
from werkzeug.test import EnvironBuilder

from switchyard.app.delivery import sender
from switchyard.app.delivery.sender import Outlet, Sender
from switchyard.app.exceptions import ClientGone
from switchyard.engine.messages import Chunk, Started
from tests.app.conftest import Connection, frames, wait_until_empty
from tests.scripted import ScriptedBackend, count, endless, finished

URL = "/v1/completions"
STREAM = {"prompt": "x", "max_tokens": 3, "stream": True}
LONG = {**STREAM, "max_tokens": 1900}


@pytest.fixture
def way():
    return "gunicorn"


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


class Waiting(Connection):
    """One whose client waits for no more than some seconds."""

    def __init__(self):
        super().__init__()
        self.client.settimeout(20)


class Local(Connection):
    def __init__(self):
        self.client, self.server = socket.socketpair()
        self.environ = {"gunicorn.socket": self.server}


def server_of(client):
    return client.application.wsgi_app


def in_pieces(size, count):
    """After a short one, that many texts of that size."""

    def script(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "begin", (0,))
        for i in range(count):
            yield Chunk(job.identifier, str(i % 10) * size, (i,))
        yield finished(job, count)

    return script


def test_the_sender_writes_all_behind_the_first_text(make_client, held, handed_over):
    client = make_client(held(count))
    response = client.post(URL, json=STREAM)
    assert handed_over.acquire(timeout=20)
    held.set()
    assert [f["choices"][0]["text"] for f in frames(response)] == ["0 ", "1 ", "2 ", ""]
    assert server_of(client).bodies[0].server.sent == len(response.data)  # for the access log


def test_what_the_socket_does_not_take_at_once_follows(make_client, held, handed_over):
    client = make_client(held(in_pieces(20_000, 10)))
    server_of(client).make_connection = Small
    response = client.post(URL, json=LONG, headers={"Accept": "text/plain"})
    assert handed_over.acquire(timeout=20)
    held.set()
    assert response.text == "begin" + "".join(str(i % 10) * 20_000 for i in range(10))


def test_a_reader_that_has_stopped_holds_no_other_up(make_client, held, handed_over):
    client = make_client(held(in_pieces(20_000, 10)))
    server_of(client).make_connection = Small
    stopped = client.post(URL, json=LONG)
    server_of(client).make_connection = Connection
    other = client.post(URL, json=LONG)
    assert [handed_over.acquire(timeout=20) for _ in "12"] == [True, True]
    held.set()
    assert len(frames(other)) == len(frames(stopped)) == 12


def test_a_frame_that_can_not_be_written_ends_its_stream_alone(make_client, held):
    def script(job):
        yield Started(job.identifier)
        yield Chunk(job.identifier, "fine", (0,))
        yield Chunk(job.identifier, "\ud800" if job.max_new_tokens == 3 else "too", (0,))
        yield finished(job, 2)

    client = make_client(held(script))
    broken = client.post(URL, json=STREAM)
    other = client.post(URL, json={**STREAM, "max_tokens": 4})
    held.set()
    assert frames(broken)[-1]["error"]["code"] == "internal_error"
    assert [f["choices"][0]["text"] for f in frames(other)] == ["fine", "too", ""]


def test_text_comes_at_once_and_not_with_the_next_look(make_client, held, handed_over, monkeypatch):
    monkeypatch.setattr(sender, "LOOK", 3600)
    client = make_client(held(count), heartbeat=5 * 3600)
    server_of(client).make_connection = Waiting
    response = client.post(URL, json=LONG)
    assert handed_over.acquire(timeout=20)
    held.set()
    assert len(frames(response)) == LONG["max_tokens"] + 1


def test_an_error_that_none_has_thought_of_ends_its_stream_alone():
    def outlet(**write):
        ended = threading.Event()
        return Mock(next_turn=0.0, error=None, ended=ended, end=ended.set, write=Mock(**write))

    sender = Sender()
    with pytest.raises(ValueError, match="odd"):
        sender.send(outlet(side_effect=ValueError("odd")))
    assert sender.send(outlet(return_value=True))


@pytest.mark.parametrize("way", ["iterator"])
def test_what_a_server_drops_and_never_closes_is_cancelled(make_client):
    """As werkzeug's own does with what a reset has cut off."""
    client = make_client(ScriptedBackend(endless), heartbeat=3600)
    environ = EnvironBuilder("/v1/completions", method="POST", json=LONG).get_environ()
    body = client.application(environ, lambda *_: None)
    next(iter(body))
    del body
    gc.collect()
    wait_until_empty(client)


def test_a_client_that_leaves_is_noticed_while_nothing_comes(make_client, held, handed_over):
    client = make_client(held(count), heartbeat=3600)
    response = client.post(URL, json=LONG)
    assert handed_over.acquire(timeout=20)
    response.close()  # which waits for the request's thread
    held.set()
    wait_until_empty(client)


def test_a_client_that_stops_reading_is_cut_off(make_client):
    """By the sender: the kernel has no such limit for local sockets."""
    client = make_client(ScriptedBackend(endless), send_timeout=0.5, heartbeat=3600)
    server_of(client).make_connection = Local
    client.post(URL, json=LONG)
    wait_until_empty(client)


def test_a_client_that_reads_slowly_is_not(make_client, held, handed_over):
    client = make_client(held(in_pieces(1000, 400)), send_timeout=0.5)
    server_of(client).make_connection = Small
    response = client.post(URL, json=LONG)
    assert handed_over.acquire(timeout=20)
    held.set()
    received = []
    for data in response.response:
        received.append(data)
        time.sleep(0.05)  # 2 seconds in all
    assert received[-1].endswith(b"data: [DONE]\n\n")


def test_heartbeats_come_between_texts(make_client, held):
    client = make_client(held(count), heartbeat=0.05)
    pieces = iter(client.post(URL, json=STREAM).response)
    assert b'"text":"0 "' in next(pieces)
    assert next(pieces) == next(pieces) == b": heartbeat\n\n"
    held.set()
    assert b"".join(pieces).endswith(b"data: [DONE]\n\n")


def test_many_streams_have_one_thread(make_client, held, handed_over):
    client = make_client(held(count))
    responses = [client.post(URL, json=LONG) for _ in range(8)]
    assert [handed_over.acquire(timeout=20) for _ in responses]
    assert [thread.name for thread in threading.enumerate()].count("sender") == 1
    held.set()
    for response in responses:
        assert len(frames(response)) == 1901


WAY = ("switchyard.engine.stream", "switchyard.app.delivery", "switchyard.app.http.client")


def num_objects():
    """The number of objects of the classes that an answer passes from its jobs to its socket."""
    return sum(str(type(item).__module__).startswith(WAY) for item in gc.get_objects())


def test_a_stream_has_nine_objects_at_most_from_jobs_to_socket(make_client, held, handed_over):
    client = make_client(held(count))
    responses, counts = [], []
    for _ in range(3):
        responses.append(client.post(URL, json=STREAM))
        assert handed_over.acquire(timeout=20)
        gc.collect()
        counts.append(num_objects())
    held.set()
    for response in responses:
        response.get_data()
    assert counts[1] < counts[2] <= counts[0] + 18


class Left:
    """The output of a client that has left."""

    is_finished = False

    class client:
        @staticmethod
        def check():
            raise ClientGone

    def notify(self, wake):
        pass


@pytest.fixture
def no_collections():
    gc.disable()
    yield
    gc.enable()


def test_a_client_that_has_left_is_no_work_for_the_garbage_collector(no_collections):
    output = Left()
    reference = weakref.ref(output)
    with contextlib.suppress(ClientGone):
        Sender().send(Outlet(output, 5.0))
    for thread in threading.enumerate():
        if thread.name == "sender":
            thread.join(20)
    del output
    assert reference() is None
