"""A visitor's answer by `Response(stream(…))`, the same in both modes of the extension."""

import functools
import queue
import threading

import flask
import pytest
import requests

from switchyard import engine
from switchyard.app import BadRequest, Switchyard, TimedOut
from switchyard.app.extension import HOST
from switchyard.app.host.local import LocalSource
from switchyard.app.host.remote import RemoteSource
from switchyard.engine.messages import Chunk, Failed, Started
from tests.app.conftest import wait_until_empty
from tests.scripted import ScriptedBackend, finished, ticking


@pytest.fixture(params=["in its process", "client mode", "client mode, head first"])
def make_app(request, make_client, serve, make_remote, model_path):
    """A host application, and the client of its models."""

    def make(backend, **settings):
        if request.param.endswith("head first"):  # status 200 comes before the first text
            settings["heartbeat"] = 0.02
        client = make_client(backend, **settings)
        if request.param == "in its process":
            app = flask.Flask("host")
            app.switchyard = Switchyard(app, model=model_path)
            app.extensions[HOST].give(client.models)
        else:
            app = make_remote(serve(client.application))
        return app, client

    return make


@pytest.fixture
def make_host(make_app, serve):
    """The URL of a view that streams, with error handlers; and the client of its models."""

    def make(backend, **settings):
        app, client = make_app(backend, **settings)

        @app.post("/ask")
        def ask():
            return flask.Response(app.switchyard.stream(**flask.request.json))

        for kind in (engine.EngineError, BadRequest, TimedOut):
            app.register_error_handler(kind, lambda error: (type(error).__name__, 418))
        session = requests.Session()
        sessions.append(session)
        return functools.partial(session.post, f"{serve(app)}/ask", stream=True), client

    sessions = []
    yield make
    for session in sessions:
        session.close()


def saying(*texts, error=None):
    def script(job):
        yield Started(job.identifier)
        for text in texts:
            yield Chunk(job.identifier, text, (1,))
        yield Failed(job.identifier, error) if error else finished(job, len(texts))

    return script


FAILED = engine.JobFailed("so it is")
SLOW = engine.ConstraintTooSlow("so it is", "constraint")
BATCH = engine.BatchFailed("so it is")


@pytest.mark.parametrize(
    ("script", "body", "kind"),
    [
        (saying("a"), {"prompt": "x " * 3000}, "PromptTooLong"),
        (saying("a"), {"prompt": "x", "temperature": "warm"}, "BadRequest"),
        (saying(error=FAILED), {"prompt": "x"}, "JobFailed"),
        (saying(error=SLOW), {"prompt": "x"}, "ConstraintTooSlow"),
        (saying("", error=BATCH), {"prompt": "x"}, "BatchFailed"),
    ],
)
def test_what_fails_before_the_first_text_reaches_an_error_handler(make_host, script, body, kind):
    ask, _ = make_host(ScriptedBackend(script))
    answer = ask(json=body)
    assert (answer.status_code, answer.text) == (418, kind)


def test_a_deadline_before_the_first_text_reaches_an_error_handler(make_host, gate):
    gate.step(1)
    ask, _ = make_host(ScriptedBackend(ticking, gate=gate))
    answer = ask(json={"prompt": "x", "timeout": 0.3})
    assert (answer.status_code, answer.text) == (418, "TimedOut")


def test_models_that_were_closed_reach_an_error_handler(make_host):
    ask, client = make_host(ScriptedBackend())
    client.models.close()
    answer = ask(json={"prompt": "x", "timeout": 0.3})
    assert (answer.status_code, answer.text) == (418, "Dead")


def broken(answer):
    """What came of an answer that breaks off."""
    assert answer.status_code == 200
    found = []
    with answer, pytest.raises(requests.exceptions.ChunkedEncodingError):
        for piece in answer.iter_content(None):
            found.append(piece)
    return b"".join(found)


def test_what_fails_amid_the_text_breaks_the_connection_off(make_host):
    ask, _ = make_host(ScriptedBackend(saying("a", "b", error=FAILED)))
    assert broken(ask(json={"prompt": "x"})) == b"ab"


def test_a_deadline_amid_the_text_breaks_the_connection_off(make_host):
    ask, _ = make_host(ScriptedBackend(ticking))
    broken(ask(json={"prompt": "x", "max_tokens": 1900, "timeout": 0.5}))


def test_models_that_are_closed_amid_the_text_break_the_connection_off(make_host):
    ask, client = make_host(ScriptedBackend(ticking))
    answer = ask(json={"prompt": "x", "max_tokens": 1900})
    client.models.close(0)
    broken(answer)


def test_a_stream_that_another_thread_closes_ends_its_reader(make_app, gate, monkeypatch, caplog):
    def told(read):
        def noting(source):
            inside.set()
            return read(source)

        return noting

    def read():
        try:
            rest.put(list(stream))
        except Exception as error:
            rest.put(error)

    inside, rest = threading.Event(), queue.Queue()
    gate.step(2)
    app, client = make_app(ScriptedBackend(ticking, gate=gate), heartbeat=5)
    stream = app.switchyard.stream("x", max_tokens=1900)
    assert next(stream) == "x"
    for source in (LocalSource, RemoteSource):
        monkeypatch.setattr(source, "read", told(source.read))
    reader = threading.Thread(target=read, daemon=True)  # else a fault would hold pytest up
    reader.start()
    assert inside.wait(20)
    stream.close()
    assert rest.get(timeout=20) == [] and stream.result is None
    reader.join(20)
    gate.open()
    wait_until_empty(client)
    assert "was lost" not in caplog.text
