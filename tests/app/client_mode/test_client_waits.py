"""Client mode's waits: for room on the server, for its answer, for the host's own client."""

import itertools
import math
import threading
from types import SimpleNamespace

import flask
import pytest

from switchyard import engine
from switchyard.app import ClientGone, TimedOut
from switchyard.app.delivery.watch import LOOK
from switchyard.app.host import wait as module
from switchyard.app.host.patient import WAITING
from switchyard.app.host.upstream import Upstream
from switchyard.app.host.wait import SLACK, Wait
from tests.app.client_mode.conftest import text


@pytest.fixture
def clock(monkeypatch):
    """The time, in a list; who sleeps lets it pass."""
    now = [1000.0]

    def sleep(seconds):
        now[0] += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    return now


@pytest.fixture
def make_wait():
    def make(timeout=None, environ=None, **settings):
        settings = {"total_timeout": 100.0, "queue_timeout": 30.0, "heartbeat": 5.0, **settings}
        with flask.Flask("host").test_request_context("/", environ_overrides=environ):
            return Wait(SimpleNamespace(**settings), timeout)

    return make


@pytest.mark.parametrize(
    ("timeout", "settings", "seconds"),
    [
        (7, {}, 7),
        (200, {}, 200),
        (None, {}, 30),
        (None, {"total_timeout": 0}, 30),
        (None, {"total_timeout": 20}, 20),
        (None, {"queue_timeout": 0}, 100),
        (None, {"queue_timeout": 0, "total_timeout": 0}, math.inf),
    ],
)
def test_a_wait_for_room_is_as_long_as_limits_allow(clock, make_wait, timeout, settings, seconds):
    wait = make_wait(timeout, **settings)
    assert wait.left == seconds
    clock[0] += 5
    assert wait.left == seconds - 5


@pytest.mark.parametrize(
    ("timeout", "total_timeout", "seconds"),
    [(None, 100, 100), (7, 100, 7), (200, 100, 200), (None, 0, math.inf), (7, 0, 7)],
)
def test_an_answer_is_waited_for_a_little_longer_than_the_server_would(
    clock, make_wait, timeout, total_timeout, seconds
):
    wait = make_wait(timeout, total_timeout=total_timeout)
    clock[0] += min(seconds, 1e9) + SLACK
    wait.look(0.0)
    if seconds < math.inf:
        clock[0] += 0.01
        with pytest.raises(TimedOut, match=f"within {seconds} seconds") as caught:
            wait.look(0.0)
        assert caught.value.code == "total_timeout"


def test_whoever_leaves_ends_the_wait_for_room(clock, make_wait, connection):
    wait = make_wait(environ=connection.environ)
    wait.rest(20.0)
    connection.reset()
    with pytest.raises(ClientGone):
        wait.rest(20.0)


def test_a_host_that_ends_does_not_wait_for_room(clock, make_wait, monkeypatch):
    turns = itertools.count()
    monkeypatch.setattr(module, "is_ending", lambda: next(turns) == 2)
    with pytest.raises(engine.Draining):
        make_wait().rest(20.0)
    assert clock[0] == 1000 + 2 * LOOK


def test_a_wait_for_room_is_as_long_as_it_is_told(clock, make_wait):
    make_wait().rest(20.1)
    assert clock[0] == pytest.approx(1020.1)


def test_while_nothing_comes_the_client_is_looked_at_all_the_time(upstream):
    server, limits = upstream(), []

    def look(silent):
        limits.append(WAITING.connection.gettimeout())
        if len(limits) == 2:
            server.answers.put(text("a"))

    answer = Upstream(server.url, None).send("POST", "/v1/completions", {}, b"{}", look)
    assert b'"a"' in answer.read_all()
    assert set(limits) == {LOOK} and len(limits) < 10


def test_an_error_that_never_ends_is_not_read_to_its_end(serve, make_remote):
    pieces, ended, most = itertools.count(), threading.Event(), 1000
    server = flask.Flask("server")

    @server.post("/v1/completions")
    def complete():
        def body():
            try:
                while next(pieces) < most:
                    yield b"x" * 65536
            finally:
                ended.set()

        return flask.Response(body(), 500)

    with make_remote(serve(server)).switchyard as switchyard:
        with pytest.raises(engine.Failure, match="returned status 500"):
            switchyard.generate("x")
        assert ended.wait(20)
    assert next(pieces) < most


def test_an_answer_without_a_body_of_json_tells_its_status(remote):
    for body in (b"[]", b'{"error": "text"}', b"\xff"):
        with pytest.raises(engine.Failure, match="is not Switchyard: it returned status 500"):
            remote((500, {}, body)).generate("x")
