"""Limits at their exact borders, and what an engine does only in time, or at a cost."""

import threading
import time
from functools import partial
from unittest.mock import Mock

import pytest

from switchyard.engine import standing as standing_module
from switchyard.engine.backends.exl.detokenizer import Detokenizer
from switchyard.engine.held import Held
from switchyard.engine.messages import Chunk, JobList, Loaded, ModelInfo, Restarting, Stopped
from switchyard.engine.schedule.alarms import Alarms
from switchyard.engine.schedule.batch import Batch
from switchyard.engine.schedule.pending import LOOK_AHEAD, Pending
from switchyard.engine.schedule.places import QueuePlaces
from switchyard.engine.standing import Past, Standing
from switchyard.engine.stats import Histogram, Occupancy, Stats, Totals
from switchyard.engine.stream import Stream
from tests.engine.reading import take_all
from tests.scripted import Gate, ScriptedBackend, job

INFO = ModelInfo(2048, 4096, 256, 64, "scripted")

# What is taken


def test_long_texts_are_taken_apart_up_to_twice_the_context(make_engine):
    backend = ScriptedBackend(info=ModelInfo(100_000, 4096, 256, 400, "scripted"))
    assert make_engine(backend).max_told == 200_000
    assert make_engine(ScriptedBackend()).max_told == 65_536


def test_a_job_holds_the_pages_of_its_next_token_and_guesses_too():
    held = Held(job(prompt=tuple(range(250)), max_new_tokens=4), Stream(["x"], lambda _: None))
    held.state = "decode"
    for num_drafts, num_pages in ((0, 1), (5, 1), (6, 2)):
        info = ModelInfo(2048, 4096, 256, 64, "scripted", num_draft_tokens=num_drafts)
        assert held.tell(None, info, held.submitted).num_pages == num_pages


# What is asked of the engine thread


def test_jobs_are_submitted_at_one_time_and_a_list_without_waiting_ones_asks_nothing(make_engine):
    gate = Gate()
    model = make_engine(ScriptedBackend(gate=gate))
    model._link.send = send = Mock(side_effect=model._link.send)
    stream = model.submit([job(f"j{i}") for i in range(3)])
    assert len({call.args[0].time for call in send.call_args_list}) == 1
    gate.step(2)
    chunks = 0
    while chunks < 3:
        chunks += sum(isinstance(event, Chunk) for event in stream.take(20))
    send.reset_mock()
    assert [one.state for one in model.jobs(timeout=0)] == ["decode"] * 3
    send.assert_not_called()
    gate.open()
    take_all(stream)


def test_room_is_asked_for_the_first_that_has_some_and_no_other(make_engine, gate):
    backend = ScriptedBackend(gate=gate)
    model = make_engine(backend, max_batch_size=1)
    streams = [model.submit([job(f"j{i}")]) for i in range(4)]
    gate.open()
    for stream in streams:
        take_all(stream)
    assert sum(name == "has_room" for name, _ in backend.calls) == 4


def test_puts_that_somebody_polls_for_take_none_of_the_queues_locks():
    stream = Stream(["a"], lambda identifier: None, wake=lambda: None)
    stream._queue.put = None
    stream.put([Chunk("a", "x", (1,))])
    assert len(stream.take_now()) == 1


# What is kept, and for how long


def test_statistics_of_more_than_the_last_seconds_are_forgotten():
    standing = Standing("m")
    for second in range(1000):
        standing.note(Stats(float(second), Totals(new_tokens=10 * second)))
    assert len(standing._recent) <= standing_module.RECENT + 2
    assert standing.rates(999.0).new_tokens == 10.0


def test_a_load_is_timed_from_its_own_beginning(clock):
    clock, standing = clock("standing"), Standing("m")
    restart = partial(standing.note, Restarting("killed"))
    for seconds, begin in ((3.0, standing.begin_load), (4.0, restart)):
        clock.now += 50.0
        begin()
        clock.now += seconds
        standing.note(Loaded(INFO))
        assert standing.load_seconds == seconds


@pytest.mark.parametrize("is_asked", [True, False], ids=["counted", "not counted"])
def test_engines_that_have_stopped_are_summed_up_once_and_let_go(is_asked):
    past = Past()
    for number in (1, 20):
        standing = Standing("m")
        standing.note(Stats(1.0, Totals(new_tokens=number)))
        if is_asked:
            past.add(standing)
        standing.note(Stopped(None))
        if not is_asked:
            past.add(standing)
    for _ in range(2 * is_asked):
        assert past.stats.totals.new_tokens == 21
    assert past._standings == []


def test_of_an_engine_before_this_one_only_what_it_counted_is_told():
    sizes = {"batch_size": Histogram((1,), 1.0), "iteration_seconds": Histogram((2,), 0.5)}
    held = {"num_active": 2, "num_pending": 3, "occupancy": Occupancy(4, 5)}
    old, new = Standing("m"), Standing("m")
    old.note(Stats(1.0, Totals(new_tokens=7), sizes, **held))
    new.follow(Past(), old)
    assert new.stats == Stats(1.0, Totals(new_tokens=7), sizes)
    new.note(Stats(2.0, Totals(new_tokens=1), {"batch_size": Histogram((1,), 3.0)}))
    assert new.stats.histograms == {**sizes, "batch_size": Histogram((2,), 4.0)}
    assert new.stats.totals.new_tokens == 8


def test_a_batch_keeps_nothing_of_jobs_that_have_ended():
    batch = Batch(4)
    for identifier in ("ended", "back"):
        batch.add(job(identifier, stop_on_loop=True))
    batch.end("ended")
    assert batch.put_back("back") is not None
    assert batch._detectors == {} and len(batch) == 0
    batch.end("back")
    assert not batch._put_back and not batch._emitted
    events = [Chunk("x", "x", (1,))]
    assert batch.cut_loops(events)[0] is events  # nothing is looked through for nobody


# The queue


def test_no_answer_is_waited_for_once_none_will_come():
    changed, begin = threading.Condition(), time.monotonic()
    places = QueuePlaces(changed, lambda _: places.end())
    with changed:
        assert places.ask(10) == {} and places.ask_jobs(10) == ()
    assert time.monotonic() < begin + 5


def test_jobs_of_an_older_answer_are_not_told():
    changed = threading.Condition()
    places = QueuePlaces(changed, lambda _: None)
    one = Held(job(), Stream(["x"], lambda _: None)).tell(None, None, 0.0)
    places.note(JobList(1, (one,)))
    with changed:
        assert places.ask_jobs(0) == (one,)
        assert places.ask_jobs(0) == ()


def test_the_best_are_sought_once_until_something_changes():
    pending = Pending()
    for i in range(3 * LOOK_AHEAD):
        pending.push(job(f"j{i}"))
    best = pending.candidates()
    assert pending.candidates() is best and len(best) == LOOK_AHEAD
    pending.push(job("new"))
    assert pending.candidates() is not best


def test_a_job_without_room_waits_for_no_more_than_so_much_of_others():
    pending = Pending(factor=2.0)
    for identifier in ("large", "b", "c", "d"):
        pending.push(job(identifier, client=identifier))
    assert len(pending.candidates()) == 4
    pending.start("b")
    assert pending.candidates()[0].identifier == "large"
    assert len(pending.candidates()) == 3
    pending.start("c")  # twice its work, exactly
    assert [one.identifier for one in pending.candidates()] == ["large"]


# Alarms


def test_only_an_alarm_that_is_the_first_wakes_their_thread():
    alarms = Alarms()
    first = alarms.set(5.0, lambda: None)
    notified = []
    with alarms._changed:
        notify = alarms._changed.notify
        alarms._changed.notify = lambda: notified.append(1) or notify()
    while not alarms._next_turn:
        pass
    others = [alarms.set(seconds, lambda: None) for seconds in (50.0, 60.0)]
    assert notified == []
    others.append(alarms.set(0.001, lambda: None))
    assert notified == [1]
    for alarm in (first, *others):
        alarm.cancel()


# Text


def bytes_of(*values):
    """What is told of a completion, a token for each byte."""
    detokenizer = Detokenizer([bytes([i]) for i in range(256)], job())
    told = [detokenizer.push(value)[0] for value in values]
    return [*told, detokenizer.flush()[0]]


def test_bytes_that_are_no_character_are_not_held_back():
    assert bytes_of(*[0xFF] * 20) == ["\ufffd"] * 20 + [""]
    assert bytes_of(0xF0, 0x9F, 0x41) == ["", "", "\ufffdA", ""]
    assert bytes_of(0xF0, 0x9F) == ["", "", "\ufffd"]
