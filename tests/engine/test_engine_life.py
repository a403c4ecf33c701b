"""An engine loads, fails, drains and closes."""

import contextlib
import gc
import threading
import weakref
from functools import partial
from unittest.mock import Mock

import pytest

from switchyard import engine
from switchyard.engine import messages
from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from switchyard.engine.grammar import constraints
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.links.thread import EngineThread
from tests.conftest import wait_for
from tests.engine.conftest import over_all_links
from tests.engine.failing import begin
from tests.engine.reading import take_all, text, wait_for_state
from tests.scripted import NoLink, Panic, ScriptedBackend, endless, finished, job


@pytest.mark.parametrize("state", ["draining", "stopped"])
def test_a_drain_refuses_new_jobs_at_once_and_lets_those_in_hand_end(make_engine, state, gate):
    """With a close, or before one."""
    model = make_engine(ScriptedBackend(gate=gate))
    stream = model.submit([job("a", 3)])
    way = engine.Models([model]).drain if state == "draining" else partial(model.close, 60, 20)
    ending = begin(way)
    wait_for_state(model, "draining")
    with pytest.raises(engine.Draining, check=lambda error: error.retry_after >= 1):
        model.submit([job("b")])
    gate.open()
    assert text(take_all(stream)) == "0 1 2 "
    ending.join(20)
    assert model.state == state


def test_jobs_are_refused_while_the_model_loads(make_engine):
    backend = ScriptedBackend()
    backend.opening.clear()
    model = make_engine(backend, start=False)
    model.start()
    with pytest.raises(engine.Loading):
        model.submit([job("a")])
    assert model.state == "loading" and not model.wait_until_loaded(0)
    backend.opening.set()
    assert model.wait_until_loaded(20)
    take_all(model.submit([job("a")]))


@over_all_links
@pytest.mark.parametrize(
    ("error", "message"),
    [
        (engine.ModelError("no such weights"), "no such weights"),
        (KeyError("lm_head"), "the model can't be loaded: KeyError: 'lm_head'"),
        (Panic("bad header"), "the model can't be loaded: Panic: bad header"),
    ],
)
def test_a_model_that_cannot_be_loaded_says_why(make_engine, error, message):
    model = make_engine(ScriptedBackend(open_error=error))
    assert model.state == "stopped" and str(model.error) == message
    with pytest.raises(engine.Dead, match=r"can.t be loaded|no such weights"):
        model.check_room(1)
    assert type(model.error) is engine.ModelError


INFO = messages.ModelInfo(2048, 4096, 256, 64, "scripted")


@pytest.fixture
def alone(model_path):
    """An engine over NoLink, loaded."""

    def alone(info=INFO, **config):
        model = Engine(ModelConfig(model_path, "m", **config), lambda deliver: NoLink())
        if info is not None:
            model.deliver([messages.Loaded(info)])
        return model

    return alone


@pytest.mark.parametrize(("setting", "context"), [(300, 300), (None, 2048)])
def test_the_context_is_the_settings_then_the_files_then_the_loaded_models(alone, setting, context):
    model = alone(None, max_seq_len=setting)
    assert model.context == context
    with pytest.raises(engine.Loading):
        model.max_tokens  # noqa: B018
    model.deliver(
        [messages.Loaded(messages.ModelInfo(280, 4096, 256, 64, "scripted", num_draft_tokens=3))]
    )
    assert (model.context, model.max_tokens) == (280, 277)


def test_jobs_of_other_servers_are_asked_for_and_ended_on_a_shared_engine_alone(alone):
    shared = {"link": "socket", "at": ("unix:/run/engine",)}
    for config in (shared, {}):
        model = alone(**config)
        assert model.jobs(timeout=0) == [] and model._link.sent == []
        assert model.jobs(timeout=0.001) == []
        assert model.cancel("unknown") is (config is shared)
        kinds = [type(command) for command in model._link.sent]
        assert kinds == [messages.ListJobs, messages.Cancel] * (config is shared)


def test_a_place_is_told_of_jobs_that_wait_and_of_no_others(alone):
    model = alone()
    model.submit([job("a", 9, prompt=(1, 2)), job("b", 9, prompt=(1, 2, 3, 4))])
    model.deliver([messages.PendingList(0, ("x", "a", "b"))])
    assert model.queued("b", 60.0, timeout=0) == messages.Queued("b", 3, 4)
    model.deliver([messages.Started("b")])
    assert model.queued("b", 60.0, timeout=0) is model.queued("gone", 60.0, timeout=0) is None
    assert model.queued("a", 60.0, timeout=0) == messages.Queued("a", 2, 2)
    lists = [command for command in model._link.sent if isinstance(command, messages.ListPending)]
    assert len(lists) == 1  # in a minute


def test_a_release_that_fails_is_logged_and_the_engine_has_ended(make_engine, caplog):
    backend = ScriptedBackend()
    model = make_engine(backend)
    backend.close = Mock(side_effect=Panic("in the driver"))
    assert model.close(timeout=20)
    assert (model.state, model.error) == ("stopped", None)
    assert "the model can't be released" in caplog.text and "in the driver" in caplog.text


@pytest.mark.parametrize(
    ("info", "ask", "end"),
    [
        (None, lambda model: model.wait_until_loaded(60), Engine.drain),
        (
            INFO,
            lambda model: model.queued("a", 0.0, 60.0),
            lambda m: m.deliver([messages.Stopped(None)]),
        ),
        (INFO, lambda model: model.close(60, 20), lambda m: m.deliver([finished(job("a"), 1)])),
    ],
    ids=["a load that is given up", "a place in an engine that ended", "the last job of a close"],
)
def test_nothing_is_waited_for_that_will_not_come(alone, info, ask, end):
    model, found = alone(info), []
    if info is not None:
        model.submit([job("a")])
    waiting = begin(lambda: found.append(ask(model)))
    wait_for(lambda: model._changed._waiters)
    end(model)
    waiting.join(20)
    assert not waiting.is_alive() and found[0] is not (info is None)


def test_what_comes_after_the_end_of_an_engine_is_dropped(alone):
    model, stopped = alone(None), []
    model.on_stopped(stopped.append)
    model.deliver([messages.Stopped(None)])
    model.deliver([messages.Loaded(INFO)])
    model.deliver([messages.Stopped(engine.DeviceLost("the process was killed"))])
    assert model.error is None and model.standing.info is None and stopped == [model]


class Weights:
    """The large weights of a model."""


def test_an_engine_that_could_not_load_keeps_no_model(model_path):
    kept = []

    def make_backend():
        weights = Weights()
        kept.append(weakref.ref(weights))
        raise ValueError("a bad file")

    config = ModelConfig(model_path, "scripted")
    model = Engine(config, lambda deliver: EngineThread(config, make_backend, deliver))
    model.start()
    with contextlib.suppress(engine.ModelError):
        model.wait_until_loaded(20)
    assert "a bad file" in str(model.error)
    assert model.close(timeout=20)
    gc.collect()
    assert [one() for one in kept] == [None]


class TellingLock:
    """Tells who comes to it."""

    def __init__(self):
        self._lock = threading.Lock()
        self.come = threading.Semaphore(0)

    def __enter__(self):
        self.come.release()
        self._lock.acquire()

    def __exit__(self, *error):
        self._lock.release()


def test_grammars_are_made_once_and_by_who_asks_first(alone, monkeypatch):
    made = []

    def make(tokenizer):
        made.append(tokenizer)
        for _ in asking:
            assert lock.come.acquire(timeout=20)
        return Grammars(tokenizer)

    monkeypatch.setattr("switchyard.engine.engine.Grammars", make)
    model = alone(None)
    assert made == []  # a load beside running answers holds none of them up
    lock = model._making = TellingLock()
    asking = range(4)
    threads = [begin(model.check_constraint, constraints.regex("a+")) for _ in asking]
    for thread in threads:
        thread.join(20)
    assert made == [model.tokenizer]


@over_all_links
def test_close_ends_what_does_not_finish_within_the_grace(make_engine):
    model = make_engine(ScriptedBackend(endless, max_active=1))
    streams = [model.submit([job("a")]), model.submit([job("b")])]
    assert model.close(drain=0, timeout=20)
    for stream in streams:
        end = take_all(stream)[-1]
        assert isinstance(end, messages.Failed) and isinstance(end.error, engine.Closed)


def test_close_ends_jobs_in_time_also_where_a_step_hangs(make_engine, gate):
    model = make_engine(ScriptedBackend(endless, gate=gate))
    stream = model.submit([job("a")])
    gate.wait_until_held()
    assert not model.close(drain=0.01, timeout=0.01)
    [end] = take_all(stream)
    assert isinstance(end, messages.Failed) and isinstance(end.error, engine.Closed)
    assert "unloaded or replaced" in str(end.error)  # not only the server's end does so
    gate.open()
