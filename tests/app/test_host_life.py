"""From the start to the end of the models of a host application."""

import gc
import os
import queue
import signal
import subprocess
import sys
import threading

import flask
import pytest

from switchyard import engine
from switchyard.app import ClientGone, Switchyard
from switchyard.app.host.tables import RELOADS, TABLES
from switchyard.engine.messages import Cancel
from switchyard.engine.models import lifecycle, table
from switchyard.engine.schedule import alarms
from tests.conftest import ROOT, wait_for
from tests.scripted import ScriptedBackend

ENDLESS = {"max_tokens": 1900, "ignore_eos": True}
ENDING = """
import flask, sys, threading
from switchyard import Switchyard
switchyard = Switchyard(flask.Flask("host"), model=sys.argv[1])
stream = switchyard.stream("x", max_tokens=600, ignore_eos=True)
def read():
    try:
        for _ in stream:
            pass
        print(stream.result.finish_reason, flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
threading.Thread(target=read, daemon=True).start()
sys.exit(3)
"""
LOOKED_AT = (
    *("/health/live", "/health/ready", "/v1/health/ready", "/v2/health/ready", "/"),
    *("/v1/models", "/v1/requests", "/metrics", "/openapi.json", "/no/such/path"),
)


def test_a_second_extension_is_refused_and_the_first_goes_on(make_host, model_path):
    app, first = make_host()
    with pytest.raises(RuntimeError, match="already has a Switchyard extension"):
        Switchyard(app, model=model_path, url_prefix="/other")
    assert first.generate("x", max_tokens=2).completion_tokens == 2
    assert app.test_client().get("/other/health/live").status_code == 404


def test_to_look_count_or_be_refused_loads_nothing(make_host):
    app, switchyard = make_host()
    client, threads = app.test_client(), threading.active_count()
    for path in LOOKED_AT:
        client.get(path)
        client.options(path)
    assert switchyard.count("x") > 0
    for path, status in (("/no/such", 404), ("/v1/models", 405)):
        assert client.put(path).status_code == status
    assert threading.active_count() == threads
    ready = client.get("/health/ready")
    assert (ready.status_code, ready.json["models"]) == (503, {"tiny": "unloaded"})
    assert not switchyard.models.get().is_started


def test_a_request_for_text_loads(make_host):
    app, switchyard = make_host()
    assert app.test_client().post("/v1/completions", json={"prompt": "x"}).status_code == 503
    assert switchyard.models.wait_until_loaded(60)


def test_what_was_never_started_is_not_waited_for(make_host):
    _, switchyard = make_host()
    with pytest.raises(RuntimeError, match="start"):
        switchyard.models.wait_until_loaded()


@pytest.mark.parametrize("is_by_with", [True, False])
def test_a_stream_is_cancelled_by_its_close_and_behind_with(make_host, monkeypatch, is_by_with):
    _, switchyard = make_host()
    model, found = switchyard.models.get(), []
    monkeypatch.setattr(model, "_cancel", lambda i: found.append(i) or model._link.send(Cancel(i)))
    stream = switchyard.stream("x", **ENDLESS)
    next(stream)
    [job] = model.jobs()
    if is_by_with:
        with stream:
            pass
    else:
        stream.close()
    assert found == [job.identifier]
    assert list(stream) == [] and stream.result is None


def engine_threads():
    return [t for t in threading.enumerate() if t.name.startswith(("engine-", "watchdog-"))]


def test_close_releases_and_leaves_no_thread(make_host, monkeypatch):
    before = set(threading.enumerate())
    monkeypatch.setattr(alarms, "PURGE", 20)  # for which the alarms' thread would go on by itself
    app, switchyard = make_host()
    with switchyard:
        assert switchyard.generate("x", max_tokens=2).completion_tokens == 2
    assert set(threading.enumerate()) <= before
    with pytest.raises(engine.Dead, match="closed"):
        switchyard.generate("x")
    assert app.test_client().post("/v1/completions", json={"prompt": "x"}).status_code == 503
    assert not engine_threads()


def test_what_was_closed_begins_anew_by_start(make_host):
    app, switchyard = make_host()
    ready = 'switchyard_model_state{model_name="tiny",state="ready"} 1.0'
    for _ in range(2):
        with switchyard:
            assert switchyard.generate("x", max_tokens=2).completion_tokens == 2
            assert ready in app.test_client().get("/metrics").text


def test_applications_that_are_configured_alike_share_their_models(make_host):
    first, second = make_host()[1], make_host(max_pending_tokens=131072, grace=7)[1]
    other = make_host(name="other")[1]
    first.start()
    second.start()
    assert first.models is second.models and first.models is not other.models
    assert first.close()
    assert second.generate("x", max_tokens=2).completion_tokens == 2
    assert second.close()
    assert not engine_threads()


@pytest.mark.parametrize("names", [["tiny"], ["tiny", "other"]], ids=["its only model", "of two"])
def test_a_first_load_that_fails_is_tried_again(model_path, open_models, monkeypatch, names):
    """A worker that replaces another may find no memory yet."""
    tries = []

    def backend(config):
        if config.name == "tiny":
            tries.append(1)
        is_first = config.name == "tiny" and len(tries) == 1
        return ScriptedBackend(open_error=engine.NoRoom("no memory") if is_first else None)

    open_models(backend)
    monkeypatch.setattr(table, "TICK", 0.02)
    monkeypatch.setattr(lifecycle, "RETRY", 1.5)
    models = [{"name": name, "model": model_path, "load": "start"} for name in names]
    with Switchyard(flask.Flask("host"), models=models) as switchyard:
        with pytest.raises(engine.Dead, match="no memory") as caught:
            switchyard.generate("x")
        assert caught.value.retry_after <= 1.5
        wait_for(lambda: switchyard.models.status("tiny").state == "ready")
        assert switchyard.generate("x", max_tokens=2).completion_tokens == 2
    assert len(tries) == 2


@pytest.fixture
def loading(make_host, open_models):
    """An application whose model loads until the test ends, and where its requests go wrong."""
    begun, go_on, errors, threads = threading.Event(), threading.Event(), queue.Queue(), []

    def backend(config):
        begun.set()
        go_on.wait(20)
        return ScriptedBackend()

    def ask(environ=None):
        def run():
            with app.test_request_context("/", environ_overrides=environ):
                try:
                    errors.put(switchyard.generate("x"))
                except Exception as error:
                    errors.put(error)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        assert begun.wait(20)

    open_models(backend)
    app, switchyard = make_host()
    ask.end = go_on.set
    yield ask, errors, switchyard
    go_on.set()
    for thread in threads:
        thread.join(20)


class Worker:
    alive = True

    def handle_exit(self, signum, frame):
        self.alive = False


def test_a_server_that_ends_does_not_wait_for_a_load(loading):
    """gunicorn's worker, whose handler of SIGTERM is a method of it, waits for its requests."""
    ask, errors, _ = loading
    ask()
    before = signal.signal(signal.SIGTERM, Worker().handle_exit)
    try:
        signal.raise_signal(signal.SIGTERM)
        assert isinstance(errors.get(timeout=10), engine.Draining)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_visitor_who_leaves_during_a_load_is_noticed(loading, connection):
    ask, errors, _ = loading
    ask(connection.environ)
    connection.reset()
    assert isinstance(errors.get(timeout=10), ClientGone)


def test_who_handles_sigterm_itself_ends_the_wait_for_a_load_by_close(loading):
    ask, errors, switchyard = loading
    ask()
    closing = threading.Thread(target=switchyard.close, args=(0,))  # which waits for the load
    closing.start()
    try:
        assert isinstance(errors.get(timeout=10), engine.Refused)
    finally:
        ask.end()
        closing.join(20)


HOLDER = """
import sys
from switchyard.app.host.claims import ModelClaim
claim = ModelClaim(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


def test_a_process_of_the_same_model_is_told(make_host, model_path, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    link = tmp_path / "the same by another name"
    link.symlink_to(model_path)
    line = [sys.executable, "-c", HOLDER, link]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdout.readline() == b"held\n"
        _, switchyard = make_host()
        switchyard.start()
        other.stdin.close()
    [warning] = [r.getMessage() for r in caplog.records if "of this user" in r.getMessage()]
    assert f"process {other.pid} " in warning
    assert switchyard.close()
    caplog.clear()
    for _ in range(2):  # nobody else does now, and this process itself is no other
        make_host(max_pending=3 + _)[1].start()
    assert not [r for r in caplog.records if "of this user" in r.getMessage()]


def test_no_other_process_is_told_where_all_share_an_engine(make_host, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    _, switchyard = make_host(link="socket", at=[f"unix:{tmp_path}/engine.sock"])
    switchyard.start()
    assert switchyard.close() and not list(tmp_path.glob("*.lock"))


@pytest.mark.parametrize(("drain", "seconds"), [(0, 0), (3.0, 3.0), (None, 7.0)])
def test_close_waits_as_long_as_it_is_told_or_for_grace(make_host, monkeypatch, drain, seconds):
    _, switchyard = make_host(grace=7.0)
    given = []
    monkeypatch.setattr(TABLES, "stop", lambda shared, user, drain: given.append(drain) or False)
    assert not switchyard.close(drain)
    monkeypatch.undo()
    assert given == [seconds]


def test_a_dropped_stream_takes_no_lock_of_the_thread_that_collects_it(make_host):
    _, switchyard = make_host()
    stream = switchyard.stream("x", **ENDLESS)
    next(stream)
    link = switchyard.models.get()._link
    held, cancelled, send = threading.Lock(), threading.Event(), link.send

    def locked(command):  # as links do that others share
        assert held.acquire(timeout=5)
        held.release()
        send(command)
        if isinstance(command, Cancel):
            cancelled.set()

    link.send = locked
    with held:
        del stream
        gc.collect()
    assert cancelled.wait(20)


@pytest.mark.parametrize(("environment", "told"), [({}, "length"), ({RELOADS: "true"}, "Closed")])
def test_a_reload_waits_for_no_answer_and_another_end_does(model_path, environment, told):
    done = subprocess.run(
        [sys.executable, "-c", ENDING, model_path],
        **{"cwd": ROOT, "env": {**os.environ, **environment}},
        **{"capture_output": True, "text": True, "timeout": 100},
    )
    assert done.stdout.split() == [told], done.stderr
