"""No memory for a prompt, a job or a batch: what waits, what fails, what shrinks."""

import pytest

from switchyard import engine
from switchyard.engine.messages import Chunk, Failed, Finished, PutBack, Started
from switchyard.engine.schedule.batch import GROW_AFTER, Batch
from tests.engine.failing import ends, failing_to_enqueue, held, let_through
from tests.engine.reading import take_all, text
from tests.scripted import Panic, ScriptedBackend, count, finished, job


def test_out_of_memory_lowers_the_batch_for_a_while(make_engine):
    model, backend, gate = held(make_engine, max_batch_size=8)
    backend.iterate_errors = [engine.OutOfMemory("CUDA out of memory")]
    sizes, iterate = [], backend.iterate

    def noted_iterate():
        sizes.append(len(backend.active))
        return iterate()

    backend.iterate = noted_iterate
    model.submit([job("first", 1)])
    gate.wait_until_held()
    stream = model.submit([job(f"job{i}", GROW_AFTER) for i in range(8)])
    gate.open()
    events = take_all(stream)
    assert len(ends(events)) == 8 and all(isinstance(end, Finished) for end in ends(events))
    assert sizes[0] == 1 and max(sizes[:GROW_AFTER]) == 1 and max(sizes) > 1


def test_a_prompt_without_memory_waits_and_is_tried_once_more(make_engine):
    tries = []

    def script(job):
        tries.append(job.identifier)
        yield Started(job.identifier)
        if tries.count(job.identifier) <= job.max_new_tokens:
            yield Failed(job.identifier, engine.OutOfMemory("CUDA out of memory"))
        yield Chunk(job.identifier, "x", (0,))
        yield finished(job, 1)

    model = make_engine(ScriptedBackend(script))
    assert text(take_all(model.submit([job("once", 1)]))) == "x"
    [failed] = ends(take_all(model.submit([job("twice", 2)])))
    assert isinstance(failed.error, engine.OutOfMemory)
    assert tries == ["once"] * 2 + ["twice"] * 2


def test_a_prompt_without_memory_goes_before_shorter_ones_that_wait(make_engine):
    tries = []

    def script(job):
        tries.append(job.identifier)
        yield Started(job.identifier)
        if tries == ["long"]:
            yield Failed(job.identifier, engine.OutOfMemory("CUDA out of memory"))
        yield from list(count(job))[1:]

    model, backend, gate = held(make_engine, script)
    backend.has_room = lambda job: not backend.active
    streams = [model.submit([job("long", 50)])]
    gate.wait_until_held()
    streams += [model.submit([job(f"short{i}", 1)]) for i in range(2)]
    gate.open()
    assert all(isinstance(take_all(stream)[-1], Finished) for stream in streams)
    assert tries == ["long", "long", "short0", "short1"]


def test_a_job_that_is_set_up_without_memory_waits_and_is_tried_once_more(make_engine):
    model, backend, gate = held(make_engine, max_batch_size=8)
    out = [engine.OutOfMemory("CUDA out of memory") for _ in range(3)]
    failing_to_enqueue(backend, once=out[:1], twice=out[1:])
    beside = [model.submit([job(f"beside{i}", 9)]) for i in range(3)]
    gate.wait_until_held()
    once, twice = model.submit([job("once")]), model.submit([job("twice")])
    let_through(gate)
    assert not model._link._batch._limit > 2
    gate.open()
    events = take_all(once)
    assert [type(event) for event in events][:2] == [PutBack, Started]
    assert text(events) == "0 1 2 "
    events = take_all(twice)
    assert [type(event) for event in events] == [PutBack, Failed]
    assert isinstance(events[-1].error, engine.OutOfMemory)
    assert all(isinstance(take_all(stream)[-1], Finished) for stream in beside)
    assert backend.recoveries == []


@pytest.mark.parametrize("error", [engine.JobFailed("odd"), RuntimeError("odd"), Panic("odd")])
def test_a_job_that_can_not_be_set_up_fails_alone(make_engine, error):
    model, backend, gate = held(make_engine)
    failing_to_enqueue(backend, bad=[error])
    streams = [model.submit([job(name)]) for name in ("first", "bad", "last")]
    gate.open()
    first, bad, last = map(take_all, streams)
    assert text(first) == text(last) == "0 1 2 "
    assert isinstance(bad[-1].error, engine.JobFailed) and "odd" in str(bad[-1].error)
    assert backend.recoveries == []


def test_a_device_that_is_lost_while_a_job_is_set_up_stops_the_engine(make_engine):
    model, backend, gate = held(make_engine)
    running = model.submit([job("running", 50)])
    gate.wait_until_held()
    failing_to_enqueue(backend, bad=[engine.DeviceLost("the device is lost")])
    bad = model.submit([job("bad")])
    gate.open()
    for stream in (running, bad):
        assert "the device is lost" in str(take_all(stream)[-1].error)
    assert isinstance(model.error, engine.DeviceLost) and model.state == "stopped"


def test_the_batch_grows_back_one_by_one():
    batch = Batch(4)
    for i in range(4):
        batch.add(job(f"job{i}"))
    batch.halve()
    for i in range(4):
        batch.end(f"job{i}")
    sizes = []
    for _ in range(4 * GROW_AFTER):
        while not batch.is_full:
            batch.add(job(f"more{len(batch)}"))
        sizes.append(len(batch))
        batch.note([Chunk("more0", "x", (1,))])
    assert sizes == [2] * GROW_AFTER + [3] * GROW_AFTER + [4] * 2 * GROW_AFTER
    for _ in range(5):
        batch.halve()
    assert not Batch(1).is_full and batch.is_full


def test_what_went_well_before_memory_ran_out_again_counts_no_more():
    batch = Batch(8)
    batch.add(job("a"))
    batch.halve()
    for _ in range(GROW_AFTER - 1):
        batch.note([Chunk("a", "x", (1,))])
    batch.halve()
    batch.note([Chunk("a", "x", (1,))])
    assert batch.is_full


def test_a_batch_that_has_failed_is_empty():
    batch = Batch(1)
    batch.add(job("a"))
    batch.note([Chunk("a", "x", (1,))])
    again, failed = batch.break_up("x")
    assert (again, [one.identifier for one in failed]) == ([], ["a"])
    assert not batch and not batch.is_full


def test_an_end_without_text_is_a_step_that_went_well():
    """The end of a job whose first token ends it."""
    batch = Batch(8)
    batch.add(job("a"))
    assert batch.note([Finished("a", "stop", 3, 0, 0)])
    assert not batch.note([Failed("a", engine.JobFailed("x"))])
