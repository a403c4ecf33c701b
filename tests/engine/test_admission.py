"""Jobs that an engine takes or refuses, and their order."""

import threading

import pytest

from switchyard import engine
from switchyard.engine.messages import ModelInfo, Recovering
from tests.engine.conftest import over_all_links
from tests.engine.reading import take_all, text
from tests.scripted import Gate, ScriptedBackend, count, endless, job


def test_a_full_engine_refuses_and_takes_jobs_again_once_one_ends(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate), max_batch_size=1, max_pending=1)
    streams = [model.submit([job("a", 1)]), model.submit([job("b", 1)])]
    with pytest.raises(engine.Full, match="the queue is full: 2 of 2 jobs are active or waiting"):
        model.submit([job("c", 1)])
    with pytest.raises(engine.Full):
        model.check_room(1)
    gate.open()
    for stream in streams:
        take_all(stream)
    take_all(model.submit([job("c", 1)]))


def test_waiting_prompt_tokens_are_bounded_before_and_after_tokenizing(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate, max_active=1), max_pending_tokens=10)
    streams = [model.submit([job("a", 1, prompt=(1,) * 50)])]  # nothing waits
    gate.wait_until_held()
    gate.step()
    gate.wait_until_held()
    streams.append(model.submit([job("b", 1, prompt=(1,) * 6)]))
    with pytest.raises(engine.Full, match="the queue is full: 6 of 10 prompt tokens are waiting"):
        model.check_room(1, 5)
    with pytest.raises(engine.Full):
        model.submit([job("c", 1, prompt=(1,) * 2), job("d", 1, prompt=(1,) * 3)])
    streams.append(model.submit([job("c", 1, prompt=(1,) * 4)]))
    gate.open()
    for stream in streams:
        take_all(stream)


@pytest.mark.parametrize(("pace", "seconds"), [(0.01, 1.0), (2.0, 10.0), (100.0, 120.0)])
def test_a_full_engine_tells_how_long_its_queue_takes(make_engine, monkeypatch, pace, seconds):
    clock = Clock()
    for module in ("engine", "held"):
        monkeypatch.setattr(f"switchyard.engine.{module}.time", clock)
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate, max_active=1), max_batch_size=1, max_pending=4)
    for i in range(40):  # a job every `pace` seconds
        stream = model.submit([job(f"before{i}", 1)])
        clock.now += pace
        gate.step(3)
        take_all(stream)
    clock.now += 1000.0  # idle
    streams = [model.submit([job("active", 1)])]
    for _ in range(40 * 3 + 1):
        gate.wait_until_held()
    gate.step()
    gate.wait_until_held()
    streams += [model.submit([job(f"job{i}", 1)]) for i in range(4)]
    with pytest.raises(engine.Full) as caught:
        model.check_room(1)
    assert caught.value.retry_after == pytest.approx(seconds, rel=0.1)
    gate.open()
    for stream in streams:
        take_all(stream)


class Clock:
    """In place of the time module."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now


def test_a_request_of_several_jobs_is_taken_whole_or_not_at_all(make_engine):
    gate = Gate()
    backend = ScriptedBackend(gate=gate)
    model = make_engine(backend, max_batch_size=1, max_pending=2)
    stream = model.submit([job("a", 1)])
    with pytest.raises(engine.Full):
        model.submit([job("b"), job("c"), job("d")])
    assert model.num_jobs == 1
    gate.open()
    take_all(stream)
    assert [j.identifier for j in backend.enqueued] == ["a"]


def test_more_choices_than_the_engine_ever_holds_are_the_requests_own_fault(make_engine):
    model = make_engine(ScriptedBackend(), max_batch_size=2, max_pending=1)
    with pytest.raises(engine.InvalidJob, match="4 choices exceed the 3 jobs"):
        model.check_room(4)


def test_a_job_that_never_has_room_ends_before_others_start(make_engine):
    gate = Gate()

    def script(job):
        seen.append((job.identifier, big.has_events if big else None))
        return count(job)

    big, seen, backend = None, [], ScriptedBackend(script, gate)
    backend.has_room = lambda job: not backend.active and job.identifier != "big"
    model = make_engine(backend)
    first = model.submit([job("first")])
    gate.wait_until_held()
    big, small = model.submit([job("big")]), model.submit([job("small", 4)])
    gate.open()
    assert text(take_all(first)) == "0 1 2 " and text(take_all(small)) == "0 1 2 3 "
    [end] = take_all(big)
    assert "does not fit an empty generator" in str(end.error)
    assert seen == [("first", None), ("small", True)]


def started(make_engine, jobs, has_room=lambda active, job: not active):
    """The order in which `jobs`, which all wait, start."""
    gate = Gate()
    backend = ScriptedBackend(gate=gate)
    model = make_engine(backend, max_priority=1)
    model.submit([job("first", 1)])
    gate.wait_until_held()
    backend.has_room = lambda job: has_room(backend.active, job)
    streams = [model.submit([one]) for one in jobs]
    gate.open()
    for stream in streams:
        take_all(stream)
    return [j.identifier for j in backend.enqueued[1:]]


def test_equal_jobs_start_in_the_order_of_their_arrival(make_engine):
    names = [f"job{i}" for i in range(5)]
    assert started(make_engine, [job(name, 1) for name in names]) == names


def test_waiting_jobs_start_by_priority_then_share_then_length(make_engine):
    jobs = [
        job("long", 30, client="x"),
        job("short", 10, client="x"),
        job("other", 40, client="y"),
        job("urgent", 50, client="x", priority=1),
        job("background", 50, client="z", priority=-1),
    ]
    expected = ["urgent", "short", "other", "long", "background"]
    assert started(make_engine, jobs) == expected


def test_a_smaller_job_starts_while_the_best_one_has_no_room(make_engine):
    def has_room(active, job):
        return not active or job.identifier == "small"

    jobs = [job("big", 90, priority=1), job("small", 10)]
    assert started(make_engine, jobs, has_room) == ["small", "big"]


def test_a_job_that_the_backend_rejects_fails_alone(make_engine):
    backend = ScriptedBackend()
    backend.enqueue_error = engine.InvalidJob("not like this", "seed")
    model = make_engine(backend)
    [event] = take_all(model.submit([job("a")]))
    assert isinstance(event.error, engine.InvalidJob) and event.error.param == "seed"
    backend.enqueue_error = None
    assert text(take_all(model.submit([job("b", 1)]))) == "0 "


@over_all_links
def test_a_job_that_never_gets_room_fails_instead_of_waiting_for_ever(make_engine):
    [event] = take_all(make_engine(ScriptedBackend(max_active=0)).submit([job("a")]))
    assert isinstance(event.error, engine.JobFailed)


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": ()}, "prompt"),
        ({"prompt": (1, 4096)}, "prompt"),
        ({"prompt": (-1,)}, "prompt"),
        ({"stop_token_ids": (4096,)}, "stop_token_ids"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"min_new_tokens": 4}, "min_new_tokens"),
        ({"priority": 1}, "priority"),
    ],
)
def test_what_would_hurt_in_the_generator_is_rejected_before(make_engine, changes, param):
    backend = ScriptedBackend()
    with pytest.raises(engine.InvalidJob) as caught:
        make_engine(backend).submit([job(**changes)])
    assert caught.value.param == param
    assert not backend.enqueued


def test_an_identifier_that_is_in_use_is_rejected(make_engine):
    model = make_engine(ScriptedBackend(endless))
    model.submit([job("a")])
    with pytest.raises(engine.InvalidJob, match="identifier a is in use"):
        model.submit([job("b"), job("a")])
    assert model.num_jobs == 1


def test_a_job_beyond_the_context_is_rejected_with_the_numbers(make_engine):
    model = make_engine(ScriptedBackend())
    with pytest.raises(engine.PromptTooLong, match=r"3 prompt tokens and 2046 new .* 2048"):
        model.submit([job(max_new_tokens=2046)])


def test_a_job_larger_than_the_cache_is_rejected_with_the_numbers(make_engine):
    model = make_engine(ScriptedBackend(info=ModelInfo(2048, 4096, 256, 2, "scripted")))
    with pytest.raises(engine.PromptTooLong, match="the cache of 2 pages of 256"):
        model.submit([job(max_new_tokens=510)])
    take_all(model.submit([job(max_new_tokens=509)]))


def test_new_tokens_default_to_what_the_cache_allows(make_engine):
    model = make_engine(ScriptedBackend(info=ModelInfo(2048, 4096, 256, 2, "scripted")))
    assert model.max_new_tokens(400, None) == 112


def test_new_tokens_default_to_what_the_context_allows(make_engine):
    model = make_engine(ScriptedBackend(), default_max_tokens=100)
    assert model.max_new_tokens(10, None) == 100
    assert model.max_new_tokens(2000, None) == 48
    assert model.max_new_tokens(10, 500) == 500
    with pytest.raises(engine.PromptTooLong):
        model.max_new_tokens(2048, None)


def test_a_negative_prompt_needs_a_second_place_in_the_batch(make_engine):
    model = make_engine(ScriptedBackend(), max_batch_size=1)
    with pytest.raises(engine.InvalidJob, match="2 of 1 places in the batch"):
        model.submit([job("a", 1, negative_prompt=(1, 2))])
    assert text(take_all(model.submit([job("b", 1)])))


def test_an_engine_that_recovers_takes_jobs(make_engine):
    model = make_engine(ScriptedBackend())
    model.deliver([Recovering("a step failed")])
    assert model.state == "recovering"
    model.check_room(1)
    assert text(take_all(model.submit([job("a", 2)]))) == "0 1 "


def test_a_delivery_ends_while_many_threads_are_refused(make_engine):
    """Refusals take no lock of the engine: its thread would wait for each of them."""
    gate, refused = Gate(), []
    model = make_engine(ScriptedBackend(endless, gate), max_batch_size=1, max_pending=0)

    def ask(i):
        for way in (lambda: model.check_room(1), lambda: model.submit([job(f"job{i}")])):
            with pytest.raises(engine.Full, match="1 of 1 jobs are active or waiting"):
                way()
        refused.append(i)

    def amid_a_delivery(used):  # called by `deliver`, under its lock
        if seen:
            return
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        seen.append(len(refused))

    seen: list[int] = []
    stream = model.submit([job("a", 8)], on_use=amid_a_delivery)
    gate.open()
    while not seen:
        stream.take()
    stream.close()
    assert seen[0] == 100
