"""Replicas over real processes."""

import os
import signal

import pytest

from switchyard import engine
from switchyard.engine.errors import BatchFailed
from switchyard.engine.messages import Failed, Finished
from tests.engine.reading import drawn_out, take_all, take_until_text, wait_for_state, wait_until
from tests.scripted import ScriptedBackend, count, job


@pytest.fixture
def link():
    return "replicas"


def are_ready(model):
    return [one.status for one in model.standing.replicas] == ["ready"] * 2


def children(model):
    return [replica.link.pid for replica in model._link._replicas]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_of_two_is_lost_with_what_it_had_told_alone(make_engine, number):
    model = make_engine(
        ScriptedBackend(drawn_out),
        replicas=2,
        max_batch_size=2,
        silence_timeout=1.0,
        hang_exit=60.0,
    )
    wait_until(model, lambda: are_ready(model))
    streams = [model.submit([job(f"long-{i}", 1000)]) for i in range(4)]
    waiting = [model.submit([job(f"waiting-{i}", 3)]) for i in range(8)]
    for stream in streams:
        take_until_text(stream)
    lost, _ = children(model)
    os.kill(lost, number)
    ends = [take_all(streams[i])[-1] for i in (0, 2)]
    assert all(isinstance(end, Failed) and type(end.error) is BatchFailed for end in ends)
    assert not any(streams[i].is_finished for i in (1, 3))
    streams[1].close()
    for stream in waiting:
        assert isinstance(take_all(stream)[-1], Finished)
    assert model.state == "ready"
    streams[3].close()
    if number == signal.SIGSTOP:
        os.kill(lost, signal.SIGCONT)
    wait_until(model, lambda: are_ready(model), 60)


def test_jobs_outlive_the_only_process(make_engine):
    model = make_engine(ScriptedBackend(drawn_out), max_batch_size=1)
    first = model.submit([job("long", 1000)])
    take_until_text(first)
    waiting = [model.submit([job(f"waiting-{i}", 3)]) for i in range(8)]
    [lost] = children(model)
    os.kill(lost, signal.SIGKILL)
    assert isinstance(take_all(first)[-1], Failed)
    later = model.submit([job("later", 3)])  # taken, while it is reloaded
    for stream in [*waiting, later]:
        assert isinstance(take_all(stream)[-1], Finished)
    assert children(model) != [lost] and model.standing.num_restarts == 1


def test_none_takes_jobs_while_all_hang(make_engine):
    model = make_engine(ScriptedBackend(drawn_out), silence_timeout=1.0, hang_exit=60.0)
    [child] = children(model)
    waiting = model.submit([job("waiting", 3)])
    assert isinstance(take_all(waiting)[-1], Finished)
    os.kill(child, signal.SIGSTOP)
    try:
        wait_for_state(model, "hanging")
        with pytest.raises(engine.Stalled):
            model.submit([job("new", 3)])
    finally:
        os.kill(child, signal.SIGCONT)
    wait_for_state(model, "ready")
    assert isinstance(take_all(model.submit([job("after", 3)]))[-1], Finished)


def test_an_end_that_was_asked_for_is_no_loss(make_engine, caplog):
    model = make_engine(ScriptedBackend(count))
    assert model.close(timeout=20)
    assert "anew" not in caplog.text
