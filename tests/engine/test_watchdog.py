"""A backend that does not return."""

import threading
import time
from unittest.mock import Mock

import pytest

from switchyard import engine
from switchyard.engine.messages import Failed, Finished
from switchyard.engine.schedule.watchdog import Watchdog
from tests.engine.reading import take_all, text, wait_for_state
from tests.scripted import Gate, ScriptedBackend, endless, job


class Notes:
    def __init__(self):
        self.since = None
        self.told = []
        self.watchdog = Watchdog(
            "test",
            lambda: self.since,
            60.0,
            lambda seconds: self.told.append(("hang", seconds)),
            180.0,
            lambda seconds: self.told.append(("lost", seconds)),
        )

    def look(self, times):
        """A second apart. Whether to go on."""
        return all([self.watchdog.check() for _ in range(times)])


def test_a_hang_is_told_once_and_its_end_once():
    notes = Notes()
    notes.since = 100.0
    assert notes.look(60) and notes.told == []
    assert notes.look(20) and notes.told == [("hang", 60.0)]
    assert notes.look(100) and not notes.look(1)
    assert notes.told[1:] == [("lost", 180.0)]


def test_each_hang_is_told():
    notes = Notes()
    notes.since = 100.0
    notes.look(61)
    notes.since = 165.0
    assert notes.look(60) and len(notes.told) == 1
    assert notes.look(1) and notes.told == [("hang", 60.0)] * 2


def test_waiting_and_loading_take_as_long_as_they_like():
    notes = Notes()
    assert notes.look(1000) and notes.told == []


def test_a_step_that_began_long_ago_by_the_clock_is_no_hang_if_nothing_looked_meanwhile():
    notes = Notes()
    notes.since = time.monotonic() - 1e6
    assert notes.look(60) and notes.told == []


@pytest.fixture
def hanging(make_engine):
    """An engine whose first iteration hangs with an active and a waiting job."""
    gates = []

    def make(**config):
        gate = Gate()
        gates.append(gate)
        backend = ScriptedBackend(gate=gate, max_active=1)
        model = make_engine(backend, hang_timeout=2.0, **config)
        streams = [model.submit([job("active")])]
        gate.wait_until_held()
        streams.append(model.submit([job("waiting")]))
        return model, backend, gate, streams

    yield make
    for gate in gates:
        gate.open()


@pytest.mark.parametrize(
    ("errors", "recoveries"),
    [([], ["reset"]), ([RuntimeError("timed out")], ["reset", "rebuild"])],
    ids=["returns", "raises"],
)
def test_a_hang_is_told_to_all_and_the_engine_recovers_once_it_is_over(hanging, errors, recoveries):
    model, backend, gate, streams = hanging(fair_wait_factor=2.0)
    backend.iterate_errors = errors
    for stream in streams:
        events = take_all(stream)
        assert [type(event) for event in events] == [Failed]
        assert "does not return" in str(events[0].error)
    assert isinstance(events[0].error, engine.Stalled) and events[0].error.retry_after >= 1
    assert model.state == "hanging" and "does not return" in str(model.error)
    with pytest.raises(engine.Stalled):
        model.check_room(1)
    gate.open()
    wait_for_state(model, "ready")
    assert model.error is None
    assert text(take_all(model.submit([job("next")]))) == "0 1 2 "
    assert [j.identifier for j in backend.enqueued] == ["active", "next"]
    assert backend.recoveries == recoveries and model._link._pending._factor == 2.0


def test_a_hanging_cancel_is_noticed_as_well(make_engine):
    gate, cancelling = Gate(), threading.Event()
    backend = ScriptedBackend(gate=gate)
    cancel = backend.cancel

    def hanging_cancel(identifier):
        cancelling.wait()
        return cancel(identifier)

    backend.cancel = hanging_cancel
    model = make_engine(backend, hang_timeout=2.0)
    streams = [model.submit([job("a", 100), job("b", 100)])]
    gate.wait_until_held()
    model.cancel("a")
    gate.open()
    assert sum(isinstance(event, Failed) for event in take_all(streams[0])) == 2
    assert model.state == "hanging"
    cancelling.set()
    wait_for_state(model, "ready")
    assert isinstance(take_all(model.submit([job("c")]))[-1], Finished)


def test_a_hang_without_end_stops_the_engine_for_its_supervisor(hanging):
    model, _, gate, streams = hanging(hang_exit=3.0)
    models = engine.Models([model])
    assert models.wait_until_stopped(20) is model
    assert model.state == "stopped" and "does not return" in str(model.error)
    with pytest.raises(engine.Dead):
        model.submit([job("next")])
    gate.open()
    assert model.close(timeout=20)
    assert models.wait_until_stopped(0) is None  # it is told once
    assert "does not return" in str(model.error)
    for stream in streams:
        assert sum(isinstance(event, Failed) for event in take_all(stream)) == 1


def test_a_load_may_take_longer_than_a_hang(make_engine):
    backend = ScriptedBackend()
    backend.opening.clear()
    model = make_engine(backend, start=False, hang_timeout=0.05, hang_exit=0.05)
    model.start()
    assert not model.wait_until_loaded(0.5)
    assert model.state == "loading"
    backend.opening.set()
    assert model.wait_until_loaded(20)


def test_neither_waiting_nor_many_short_iterations_are_a_hang(make_engine):
    backend = ScriptedBackend(endless)
    model = make_engine(backend, hang_timeout=1.0)
    assert engine.Models([model]).wait_until_stopped(2.0) is None  # idle
    stream = model.submit([job("a")])
    deadline = time.monotonic() + 2.0
    while time.monotonic() < deadline:
        assert not any(isinstance(event, Failed) for event in stream.take(20))
    stream.close()
    assert model.state == "ready" and backend.recoveries == []


def test_a_reload_may_take_longer_than_a_hang(make_engine, gate):
    backend = ScriptedBackend(gate=gate)
    backend.iterate_errors = [RuntimeError("x")]
    backend.recovery_errors = {"reset": RuntimeError("x"), "rebuild": RuntimeError("x")}
    reload = backend.reload
    slow = Mock(side_effect=lambda: time.sleep(2.5) or reload(), __name__="reload")
    backend.reload = slow
    model = make_engine(backend, hang_timeout=1.0)
    stream = model.submit([job("a")])
    gate.open()
    assert text(take_all(stream)) == "0 1 2 "
