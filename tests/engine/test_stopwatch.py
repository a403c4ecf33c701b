"""What the engine thread measures of a job."""

import time

import pytest

from switchyard.engine.errors import JobFailed
from switchyard.engine.messages import Chunk, Failed, Finished, PutBack, Started, Timings
from switchyard.engine.schedule.counters import Counters
from switchyard.engine.schedule.stopwatch import Stopwatch
from tests.engine.reading import take_all
from tests.scripted import ScriptedBackend, job

END = Finished("a", "stop", 1, 2, 0)
TOKEN = Chunk("a", "x", (1,))


@pytest.fixture
def clock(clock):
    return clock("schedule.stopwatch")


def run(clock, *steps):
    """Timings of a job that was submitted at 90; each step is a time and what happened then."""
    stopwatch = Stopwatch(Counters())
    stopwatch.submit(job("a"), 90.0)
    for clock.now, event in steps:
        if event == "start":
            stopwatch.start("a")
        else:
            [told] = stopwatch.stamp([event])
    return told.timings


@pytest.mark.parametrize(
    ("steps", "timings"),
    [
        (
            [(100, "start"), (101, Started("a")), (103, TOKEN), (104, TOKEN), (110, END)],
            Timings(10, 3, 7),
        ),
        # It has waited until its last start.
        (
            [(100, "start"), (101, PutBack("a")), (105, "start"), (106, TOKEN), (107, END)],
            Timings(15, 1, 1),
        ),
        ([(100, "start"), (101, PutBack("a")), (107, END)], Timings(17, 0, 0)),
        ([(100, "start"), (104, END)], Timings(10, 4, 0)),
        ([(104, END)], Timings(14, 0, 0)),
    ],
    ids=["whole", "put back", "put back and ended", "without a token", "waiting"],
)
def test_a_job_waits_computes_its_prompt_and_decodes(clock, steps, timings):
    assert run(clock, *steps) == timings


def test_the_start_of_a_job_tells_how_long_it_has_waited(clock):
    stopwatch = Stopwatch(Counters())
    stopwatch.submit(job("a"), 90.0)
    for clock.now in (100, 115):  # it was put back meanwhile
        stopwatch.start("a")
        clock.now += 5
        [told] = stopwatch.stamp([Started("a")])
        assert told.queue == clock.now - 95
        stopwatch.stamp([PutBack("a")])


def test_what_has_ended_is_forgotten(clock):
    stopwatch = Stopwatch(Counters())
    for end in (END, Failed("a", JobFailed("no"))):
        stopwatch.submit(job("a"), 90.0)
        stopwatch.stamp([end])
        [again] = stopwatch.stamp([END])
        assert again is END and not stopwatch._times and not stopwatch._untold
    stopwatch.submit(job("a"), 90.0)
    stopwatch.drop_all()
    assert not stopwatch._times and not stopwatch._untold


def test_the_engine_measures_each_part(make_engine, gate):
    engine = make_engine(ScriptedBackend(gate=gate, max_active=1))
    first = engine.submit([job("a", 1)])
    gate.wait_until_held()
    begin = time.monotonic()
    second = engine.submit([job("b", 2)])
    submitted = time.monotonic()
    waited = time.monotonic()
    gate.open()
    take_all(first)
    timings = take_all(second)[-1].timings
    end = time.monotonic()
    assert timings.queue >= waited - submitted
    assert timings.prefill > 0 and timings.decode > 0
    assert timings.queue + timings.prefill + timings.decode <= end - begin


def test_the_time_to_the_first_token_is_from_the_submission_on(clock):
    counters = Counters()
    stopwatch = Stopwatch(counters)
    stopwatch.submit(job("a"), 90.0)
    stopwatch.start("a")
    clock.now = 103.0
    stopwatch.stamp([TOKEN])
    assert counters._sizes["time_to_first_token_seconds"].total == 13.0
