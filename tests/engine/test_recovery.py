"""A backend that fails: which jobs end, which start over, and how it is brought back."""

from unittest.mock import Mock

import pytest

from switchyard import engine
from switchyard.engine import messages
from switchyard.engine.config import ModelConfig
from switchyard.engine.links.thread import EngineThread
from tests.engine.failing import ends, failing_to_enqueue, held, let_through
from tests.engine.reading import take_all, text, wait_for_state
from tests.scripted import Panic, ScriptedBackend, count, endless, job


def test_jobs_with_text_end_once_and_those_without_start_over(make_engine):
    model, backend, gate = held(make_engine)
    old = [model.submit([job(f"old{i}", 5)]) for i in range(16)]
    gate.wait_until_held()
    let_through(gate, 3)
    new = [model.submit([job(f"new{i}", 5)]) for i in range(16)]
    let_through(gate)
    backend.iterate_errors = [RuntimeError("device on fire")]
    gate.open()
    errors = []
    for stream in old:
        [end] = ends(take_all(stream))
        errors.append(end.error)
        assert isinstance(end.error, engine.BatchFailed) and "device on fire" in str(end.error)
    assert len({id(error) for error in errors}) == len(errors)  # each in its own thread
    for stream in new:
        events = take_all(stream)
        assert text(events) == "0 1 2 3 4 " and len(ends(events)) == 1
        assert sum(isinstance(event, messages.PutBack) for event in events) == 1
    assert backend.recoveries == ["reset"]
    assert text(take_all(model.submit([job("next", 2)]))) == "0 1 "
    assert model.state == "ready" and model.error is None


def test_a_job_whose_prompts_logprobs_were_told_does_not_start_over(make_engine):
    def scored(job):
        yield messages.PromptLogprobs(job.identifier, (None,))
        yield from count(job)

    model, backend, gate = held(make_engine, scored)
    stream = model.submit([job("a")])
    gate.wait_until_held()
    let_through(gate)
    backend.iterate_errors = [RuntimeError("x")]
    gate.open()
    assert [type(event) for event in take_all(stream)] == [messages.PromptLogprobs, messages.Failed]


def test_a_job_starts_over_once_only(make_engine):
    model, backend, gate = held(make_engine)
    backend.iterate_errors = [RuntimeError("first"), RuntimeError("second")]
    stream = model.submit([job("a")])
    gate.open()
    events = take_all(stream)
    assert [type(event) for event in events] == [messages.PutBack, messages.Failed]
    assert "second" in str(events[-1].error)


def test_a_job_that_starts_over_is_listed_as_waiting_and_goes_first(make_engine):
    model, backend, gate = held(make_engine)
    backend.has_room = lambda job: not backend.active
    stream = model.submit([job("a", 5)])
    gate.wait_until_held()
    let_through(gate)
    model.submit([job("short", 1)])
    backend.iterate_errors = [RuntimeError("x")]
    backend.recovering.clear()
    gate.step()
    events = stream.take(120)
    while not any(isinstance(event, messages.PutBack) for event in events):
        events += stream.take(120)
    told = [(j.identifier, j.state) for j in model.jobs(0)]
    assert told == [("a", "pending"), ("short", "pending")]
    gate.open()
    backend.recovering.set()
    assert text(take_all(stream)) == "0 1 2 3 4 "
    assert [j.identifier for j in backend.enqueued] == ["a", "a", "short"]


def test_each_way_to_recover_comes_only_if_those_before_did_not_help(make_engine):
    model, backend, gate = held(make_engine)
    gate.open()
    for name, num_errors, end in (("a", 2, messages.Failed), ("b", 1, messages.Finished)):
        backend.iterate_errors = [RuntimeError("again")] * num_errors
        assert isinstance(take_all(model.submit([job(name)]))[-1], end)
    # The third failure followed the second at once, and b's tokens helped it.
    assert backend.recoveries == ["reset", "rebuild", "reload"]
    backend.iterate_errors = [RuntimeError("later")]
    take_all(model.submit([job("c")]))
    assert backend.recoveries == ["reset", "rebuild", "reload", "reset"]


def test_an_iteration_without_a_token_is_no_proof_of_help(make_engine):
    model, backend, gate = held(make_engine, starts_only)
    backend.iterate_errors = [RuntimeError("first")]
    model.submit([job("a")])
    gate.wait_until_held()
    let_through(gate, 3)  # started again
    backend.iterate_errors = [RuntimeError("second")]
    gate.step()
    gate.open()
    while len(backend.recoveries) < 2:
        model.jobs(0.01)
    assert backend.recoveries == ["reset", "rebuild"]


def starts_only(job):
    while True:
        yield messages.Started(job.identifier)


@pytest.mark.parametrize("kind", [RuntimeError, Panic])
def test_a_way_that_fails_itself_leads_to_the_next_at_once(make_engine, kind):
    model, backend, gate = held(make_engine)
    backend.iterate_errors = [kind("first")]
    backend.recovery_errors = {"reset": kind("not yet"), "rebuild": kind("still")}
    stream = model.submit([job("a")])
    gate.open()
    assert text(take_all(stream)) == "0 1 2 "
    assert backend.recoveries == ["reset", "rebuild", "reload"]


def test_a_device_that_is_lost_by_a_recovery_is_tried_no_further(make_engine):
    model, backend, gate = held(make_engine)
    models = engine.Models([model])
    backend.iterate_errors = [RuntimeError("first")]
    backend.recovery_errors["reset"] = engine.DeviceLost("the device is lost")
    stream = model.submit([job("a")])
    gate.open()
    take_all(stream)
    assert models.wait_until_stopped(20) is model
    assert type(model.error) is engine.DeviceLost and str(model.error) == "the device is lost"


@pytest.mark.parametrize("kind", [RuntimeError, Panic])
def test_an_engine_that_nothing_brings_back_stops_with_the_reason(make_engine, kind):
    model, backend, gate = held(make_engine, max_batch_size=1)
    models = engine.Models([model])
    backend.iterate_errors = [kind("first")]
    for name in ("reset", "rebuild", "reload"):
        backend.recovery_errors[name] = kind(f"{name} failed")
    streams = [model.submit([job(name)]) for name in ("a", "b")]
    assert models.wait_until_stopped(0) is None
    gate.open()
    for stream in streams:
        [failed] = ends(take_all(stream))
        assert isinstance(failed.error, engine.Dead) and failed.error.retry_after >= 1  # none ran
    assert models.wait_until_stopped(20) is model
    reason = f"can't be recovered: {kind.__name__}: reload failed"
    assert model.state == "stopped" and reason in str(model.error)
    with pytest.raises(engine.Dead, match=reason):
        model.submit([job("c")])


def test_a_lost_device_ends_all_jobs_and_is_not_tried_again(make_engine):
    model, backend, gate = held(make_engine)
    backend.has_room = lambda job: not backend.active
    active = model.submit([job("active", 50)])
    gate.wait_until_held()
    waiting = model.submit([job("waiting")])
    let_through(gate)
    backend.iterate_errors = [engine.DeviceLost("the device is lost: assert")]
    gate.open()
    [end] = ends(take_all(active))
    assert isinstance(end.error, engine.BatchFailed)
    [end] = ends(take_all(waiting))
    assert isinstance(end.error, engine.Dead)
    assert isinstance(model.error, engine.DeviceLost) and backend.recoveries == []
    with pytest.raises(engine.Dead, match="assert"):
        model.submit([job("later")])


def test_a_job_without_text_is_left_to_the_link_where_the_device_is_lost(model_path):
    """Another process may serve it."""
    told, backend = [], ScriptedBackend()
    backend.iterate_errors = [engine.DeviceLost("the device is lost")]
    thread = EngineThread(ModelConfig(model_path, "scripted"), lambda: backend, told.extend)
    thread.send(messages.Submit(job("a"), 0.0))
    thread.start()
    assert thread.join(20)
    assert [type(event) for event in told] == [messages.Loaded, messages.Stopped]


def test_while_it_recovers_jobs_are_taken_and_wait(make_engine):
    model, backend, gate = held(make_engine)
    backend.recovering.clear()
    backend.iterate_errors = [RuntimeError("x")]
    streams = [model.submit([job("a")])]
    gate.open()
    wait_for_state(model, "recovering")
    assert "RuntimeError: x" in str(model.error)
    streams.append(model.submit([job("b")]))
    backend.recovering.set()
    assert [text(take_all(stream)) for stream in streams] == ["0 1 2 "] * 2
    assert model.state == "ready" and model.error is None


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), Panic("x")], ids=repr)
def test_a_cancel_that_raises_is_a_fault_of_the_batch(make_engine, error):
    model, backend, gate = held(make_engine)
    cancelled, other = model.submit([job("a", 50)]), model.submit([job("b", 5)])
    gate.wait_until_held()
    backend.cancel = Mock(side_effect=error)
    model.cancel("a")
    gate.step()
    [end] = ends(take_all(cancelled))
    assert isinstance(end.error, engine.BatchFailed)
    gate.open()
    assert len(ends(take_all(other))) == 1
    assert backend.recoveries == ["reset"]


def test_a_cancelled_job_that_the_generator_has_lost_ends_and_costs_nobody(make_engine):
    model, backend, gate = held(make_engine)
    lost, other = model.submit([job("lost", 50)]), model.submit([job("other", 5)])
    gate.wait_until_held()
    cancel = backend.cancel

    def lose_and_cancel(identifier):
        del backend.active[identifier]
        return cancel(identifier)

    backend.cancel = lose_and_cancel
    model.cancel("lost")
    gate.open()
    [end] = ends(take_all(lost))
    assert isinstance(end.error, engine.BatchFailed) and "lost the job" in str(end.error)
    assert text(take_all(other)) == "0 1 2 3 4 "
    assert backend.recoveries == []


def test_zombies_are_ended_and_counted(make_engine):
    model, backend, gate = held(make_engine)
    streams = [model.submit([job(name, 50)]) for name in ("lost", "kept")]
    gate.wait_until_held()
    let_through(gate)
    del backend.active["lost"]
    for name in ("stray", "another"):
        backend.active[name] = endless(job(name))
    gate.step()
    [end] = ends(take_all(streams[0]))
    assert isinstance(end.error, engine.BatchFailed) and "lost" in str(end.error)
    gate.open()
    assert text(take_all(streams[1])).endswith("49 ")
    assert model.standing.num_zombies == 3 and [n for n, _ in backend.calls].count("reconcile") == 1


def test_nothing_is_kept_of_jobs_that_have_ended(make_engine):
    model, backend, gate = held(make_engine)
    backend.iterate_errors = [RuntimeError("x")]
    gate.open()
    for i in range(20):
        take_all(model.submit([job(f"job{i}")]))
    stream = model.submit([job("endless", 10**3)])
    stream.take(120)
    stream.close()
    assert model.close(timeout=20)
    batch = model._link._batch
    assert not batch._jobs and not batch._emitted and not batch._put_back


def test_nothing_is_kept_of_a_job_that_is_rejected_when_it_starts_over(make_engine):
    model, backend, gate = held(make_engine)
    gate.open()
    error = engine.InvalidJob("odd")
    failing_to_enqueue(backend, a=[engine.OutOfMemory("CUDA out of memory"), error])
    events = take_all(model.submit([job("a")]))
    assert [type(event) for event in events] == [messages.PutBack, messages.Failed] and events[
        -1
    ].error is error
    assert model.close(timeout=20)
    assert not model._link._batch._put_back
