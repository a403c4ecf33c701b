"""Engine threads whose jobs wait for masks, which a test releases."""

import queue

import pytest

from switchyard import engine
from switchyard.engine.grammar import bills, constraints
from switchyard.engine.messages import Chunk, Finished
from tests.conftest import DEMO
from tests.engine.exl2.drive import GREEDY
from tests.engine.failing import begin
from tests.engine.forced import exl2_backend
from tests.engine.masks import Source
from tests.engine.reading import take_all
from tests.scripted import job

WORDS = constraints.regex("[a-z ]{70,400}")
over_shared_engines = pytest.mark.parametrize("link", ["thread", "socket"], indirect=True)


@pytest.fixture
def late(make_engine, monkeypatch):
    """An engine, and the masks of its constrained jobs."""
    monkeypatch.setattr("switchyard.engine.grammar.masks.num_cores", lambda: 4)
    opened = []

    def make(num_free):
        backend = exl2_backend(DEMO)
        model = make_engine(backend)
        opened.append(Source(backend, WORDS, num_free))
        return model, opened[-1], backend

    yield make
    for source in opened:
        source.open()


def slow(name="slow", **more):
    return job(name, 40, prompt=(1, 300), sampling=GREEDY, constraint=WORDS, **more)


def free(name="free"):
    return job(name, 20, prompt=(1, 500), sampling=GREEDY, ignore_eos=True)


def wait_until_idle(model, backend, source):
    """Until the engine thread waits for the source's mask."""
    assert source.is_waited_for.wait(20)
    looked = queue.SimpleQueue()
    is_waiting = backend.is_waiting

    def look(wake):
        found = is_waiting(wake)
        looked.put(found)
        return found

    backend.is_waiting = look
    while not looked.get(timeout=20):
        pass


@pytest.fixture
def waiting(late):
    """An engine that waits for a mask of the stream's job."""
    model, source, backend = late(3)
    stream = model.submit([slow()])
    wait_until_idle(model, backend, source)
    return model, source, backend, stream


@over_shared_engines
def test_other_jobs_come_and_go_while_an_engine_waits(waiting):
    model, source, backend, stream = waiting
    steps, iterate = [], backend.iterate
    backend.iterate = lambda: steps.append(1) or iterate()
    [*_, last] = take_all(model.submit([free()]))
    assert isinstance(last, Finished) and last.new_tokens == 20
    assert len(steps) <= 25  # none while all wait
    source.open()
    [*_, last] = take_all(stream)
    assert isinstance(last, Finished)


@over_shared_engines
def test_a_job_whose_mask_is_late_can_be_cancelled(waiting):
    model, *_, stream = waiting
    stream.close()
    assert model.close(drain=20, timeout=0) in (False, True)  # all jobs have ended by now
    assert not model.num_jobs


def test_an_engine_ends_while_a_mask_is_late(waiting):
    """Its jobs first; the mask under way is waited for."""
    model, source, _, stream = waiting
    assert not model.close(timeout=0)
    [*_, last] = take_all(stream)
    assert isinstance(last.error, engine.Closed)
    source.open()
    assert model.close(timeout=20)


def test_a_drain_waits_for_a_late_mask(waiting):
    model, source, _, stream = waiting
    closed = begin(model.close, 60, 20)
    source.open()
    assert isinstance(take_all(stream)[-1], Finished)
    closed.join(20)
    assert not closed.is_alive()


@over_shared_engines
def test_a_slow_constraint_is_told_and_counted(late, monkeypatch):
    model, source, _ = late(0)
    source.open()
    monkeypatch.setattr(bills, "MAX_SECONDS", 0.0)
    monkeypatch.setattr(bills, "CREDIT", 0.0)
    num_told = []
    for name, client in (("first", "a"), ("again", "a"), ("other", "b")):
        events = take_all(model.submit([slow(name, client=client)]))
        assert isinstance(events[-1].error, engine.ConstraintTooSlow)
        num_told.append(sum(isinstance(event, Chunk) for event in events))
    assert num_told[0] >= 12 <= num_told[2] and num_told[1] == 0
    while model.standing.stats is None or model.standing.stats.totals.too_slow < 3:
        take_all(model.submit([free()]))
    assert model.standing.stats.work.mask_seconds > 0
