"""Jobs that are cancelled, and the list of jobs at work."""

import queue
import time

from switchyard.engine.messages import Chunk, Finished, Parked, PendingList, Started
from tests.conftest import wait_for
from tests.engine.conftest import over_all_links
from tests.engine.failing import begin
from tests.engine.reading import take_all, text, wait_until
from tests.scripted import Gate, ScriptedBackend, count, endless, job


def test_closing_a_stream_cancels_its_active_job_and_frees_its_place(make_engine):
    backend = ScriptedBackend(lambda job: (endless if job.identifier == "a" else count)(job))
    model = make_engine(backend, max_batch_size=1, max_pending=0)
    stream = model.submit([job("a")])
    assert isinstance(stream.take(20)[0], Started)
    stream.close()
    wait_until(model, lambda: not model._held)
    assert "cancel" in [name for name, _ in backend.calls]
    assert not backend.active
    take_all(model.submit([job("b", 1)]))


def test_closing_a_stream_removes_its_waiting_job(make_engine, gate):
    backend = ScriptedBackend(gate=gate, max_active=1)
    model = make_engine(backend)
    first = model.submit([job("a", 2)])
    model.submit([job("b", 2)]).close()
    gate.open()
    take_all(first)
    wait_until(model, lambda: not model._held)
    assert [j.identifier for j in backend.enqueued] == ["a"]


def test_cancel_by_identifier_tells_the_reader_what_was_generated(make_engine, gate):
    model = make_engine(ScriptedBackend(gate=gate))
    stream = model.submit([job("a", 100)])
    gate.step(3)
    for _ in range(4):
        gate.wait_until_held()
    assert model.cancel("a")
    gate.open()
    events = take_all(stream)
    assert text(events) == "0 1 2 "
    assert events[-1] == Finished("a", "cancelled", 3, 3, 0)
    assert not model.cancel("a") and not model.cancel("never")


def test_cancel_of_a_waiting_job_tells_its_reader_so(make_engine, gate):
    model = make_engine(ScriptedBackend(gate=gate, max_active=1))
    model.submit([job("a")])
    gate.wait_until_held()
    stream = model.submit([job("b")])
    assert model.cancel("b")
    gate.open()
    assert take_all(stream) == [Finished("b", "cancelled", 3, 0, 0)]


def test_jobs_tells_state_place_counts_and_pages(make_engine, gate):
    model = make_engine(ScriptedBackend(gate=gate, max_active=1), max_priority=7)
    model.submit([job("a", 300, priority=7)])
    gate.wait_until_held()
    for name in ("b", "c"):
        model.submit([job(name, prompt=(1, 2, 3, 4))])
    a, b, c = told(model, gate)
    assert [(j.identifier, j.state, j.place, j.num_pages, j.priority) for j in (a, b, c)] == [
        ("a", "prefill", None, 1, 7),
        ("b", "pending", 1, 0, 0),
        ("c", "pending", 2, 0, 0),
    ]
    a, b, c = told(model, gate)
    assert (a.state, a.place, a.prompt_tokens, a.new_tokens) == ("decode", None, 3, 1)
    assert (b.prompt_tokens, b.new_tokens) == (4, 0)
    assert a.age >= b.age >= c.age >= 0
    gate.open()


def told(model, gate):
    """`jobs()`, one iteration on: the engine thread answers between two."""
    send = model._link.send

    def send_and_step(command):
        send(command)
        gate.step()

    model._link.send = send_and_step
    states = model.jobs(20)
    model._link.send = send
    return states


def test_jobs_are_listed_without_places_while_the_engine_thread_hangs(make_engine, gate):
    model = make_engine(ScriptedBackend(gate=gate, max_active=1))
    model.submit([job("a")])
    gate.wait_until_held()
    model.submit([job("b")])
    assert [(j.identifier, j.state, j.place) for j in model.jobs(0.01)] == [
        ("a", "pending", None),
        ("b", "pending", None),
    ]
    gate.open()


def test_a_list_comes_with_its_answer_and_not_when_the_time_is_over(make_engine):
    gate, lists = Gate(), queue.Queue()
    model = make_engine(ScriptedBackend(endless, gate, max_active=1))
    streams = [model.submit([job(name, 100)]) for name in ("a", "b")]
    gate.step(2)
    gate.wait_until_held()
    thread = begin(lambda: lists.put(model.jobs(120)))
    gate.open()
    assert [state.place for state in lists.get(timeout=20)] == [None, 1]
    thread.join(20)
    for stream in streams:
        stream.close()


def test_while_one_asks_where_it_stands_no_other_does(make_engine, monkeypatch):
    gate, questions = Gate(), queue.Queue()
    model = make_engine(ScriptedBackend(endless, gate), max_batch_size=1)
    streams = [model.submit([job(name)]) for name in ("active", "waits")]
    gate.wait_until_held()  # the engine thread answers nobody
    monkeypatch.setattr(model._link, "send", questions.put)
    first = begin(model.queued, "waits", 3600, 120)
    question = questions.get(timeout=20)
    assert model.queued("waits", 3600, 0.01) is None
    assert questions.empty()
    model.deliver([PendingList(question.serial, ("waits",))])
    first.join(20)
    assert not first.is_alive()
    assert model.queued("waits", 3600).place == 1
    monkeypatch.undo()
    for stream in streams:
        stream.close()
    gate.open()


def test_of_listed_jobs_none_is_older_than_one_that_came_before(make_engine):
    model = make_engine(ScriptedBackend(endless))
    stream = model.submit([job(f"job{i}") for i in range(64)])
    for _ in range(20):
        ages = [state.age for state in model.jobs(0)]
        assert len(ages) == 64 and ages == sorted(ages, reverse=True)
    stream.close()


def parking(job):
    yield Started(job.identifier)
    yield Chunk(job.identifier, "x", (0,))
    while job.identifier == "parked":
        time.sleep(0.005)
        yield Parked(job.identifier)
    yield Parked(job.identifier)
    while True:
        time.sleep(0.005)
        yield Parked(job.identifier, is_over=True)


@over_all_links
def test_jobs_tells_which_are_parked(make_engine):
    model = make_engine(ScriptedBackend(parking))
    stream = model.submit([job("parked"), job("returned")])
    expected = {"parked": ("parked", 0), "returned": ("decode", 1)}
    wait_for(lambda: {j.identifier: (j.state, j.num_pages) for j in model.jobs()} == expected)
    stream.close()
    assert not any(isinstance(event, Parked) for event in stream.take_now())
