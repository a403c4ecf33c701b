"""What an engine thread counts, and what is told of it."""

import os
import signal
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.engine.messages import Chunk, Prefill, Restarting, Started, Timings
from switchyard.engine.schedule import counters
from switchyard.engine.schedule.counters import INTERVAL, OCCUPANCY_INTERVAL, Counters
from switchyard.engine.standing import RECENT, Standing
from switchyard.engine.stats import BOUNDS, Histogram, Occupancy, Rates, Stats, Totals, Work
from tests.conftest import wait_for
from tests.engine.conftest import over_all_links
from tests.engine.failing import let_through
from tests.engine.pipe.child import child_of
from tests.engine.reading import take_all
from tests.scripted import ScriptedBackend, count, endless, finished, job

PROMPT, CACHED = 100, 60  # tokens
TIMES = ("queue_time", "prefill_time", "decode_time", "inference_time")


def story(told):
    """A prompt in two pieces, two tokens at once, others alone, and an end with guesses."""
    yield Started(told.identifier)
    yield Prefill(told.identifier, 80, PROMPT, CACHED)
    yield Prefill(told.identifier, PROMPT, PROMPT, CACHED)
    yield Chunk(told.identifier, "a b ", (1, 2))
    for i in range(told.max_new_tokens - 2):
        yield Chunk(told.identifier, "c ", (i,))
    end = finished(told, told.max_new_tokens)
    yield replace(
        end, prompt_tokens=PROMPT, cached_tokens=CACHED, draft_tokens=4, accepted_tokens=1
    )


def stats_of(model, is_right):
    """Once they are as they should be."""
    return wait_for(lambda: (stats := model.standing.stats) and is_right(stats) and stats)


def number(histogram):
    return sum(histogram.counts)


@over_all_links
def test_what_jobs_went_through_is_counted(make_engine):
    model = make_engine(ScriptedBackend(story))
    for stream in [model.submit([job(f"job{i}", 5 + i, prompt=(1,) * PROMPT)]) for i in range(4)]:
        take_all(stream)
    stats = stats_of(model, lambda stats: stats.totals.cut == 4)
    assert stats.totals == Totals(
        prompt_tokens=4 * PROMPT,
        cached_tokens=4 * CACHED,
        new_tokens=5 + 6 + 7 + 8,
        draft_tokens=16,
        accepted_tokens=4,
        cut=4,
    )
    sizes = stats.histograms
    assert sizes.keys() == BOUNDS.keys()
    assert all(len(one.counts) == len(BOUNDS[name]) + 1 for name, one in sizes.items())
    for name in BOUNDS:
        if name.startswith(("request_", "e2e_")) or name == "time_to_first_token_seconds":
            assert number(sizes[name]) == 4, name
    assert number(sizes["inter_token_latency_seconds"]) == 26 - 4
    assert sizes["iteration_tokens"].total == 26 + 4 * (PROMPT - CACHED)
    assert sizes["request_params_max_tokens"].total == 26
    assert sizes["request_prompt_tokens"].total == 4 * PROMPT
    assert sizes["request_generation_tokens"].total == 26
    assert number(sizes["batch_size"]) == number(sizes["iteration_seconds"])
    assert (stats.num_active, stats.num_pending) == (0, 0)


def test_jobs_that_run_and_wait_are_told_and_how_each_ends(make_engine):
    model = make_engine(ScriptedBackend(endless), max_batch_size=2)
    streams = [model.submit([job(str(i), 99)]) for i in range(5)]
    stats_of(model, lambda stats: (stats.num_active, stats.num_pending) == (2, 3))
    for stream in streams:
        stream.close()
    stats = stats_of(model, lambda stats: stats.totals.cancelled == 5)
    assert number(stats.histograms["request_queue_time_seconds"]) == 5
    assert number(stats.histograms["request_prompt_tokens"]) <= 4  # of those that had begun


def test_recoveries_and_what_they_end_are_counted(make_engine, gate):
    backend = ScriptedBackend(count, gate=gate)
    model = make_engine(backend)
    streams = [model.submit([job("told", 9)])]
    gate.step(3)
    for _ in range(4):
        gate.wait_until_held()
    streams.append(model.submit([job("untold", 9)]))
    let_through(gate)
    backend.iterate_errors = [engine.OutOfMemory("full")]
    backend.recovery_errors = {"reset": RuntimeError("in vain")}
    gate.open()
    for stream in streams:
        take_all(stream)
    totals = stats_of(model, lambda stats: stats.totals.cut == 1).totals
    assert (totals.failed, totals.put_back, totals.out_of_memory) == (1, 1, 1)
    assert (totals.resets, totals.rebuilds, totals.reloads) == (1, 1, 0)


def test_jobs_that_a_hang_has_ended_count_as_failed(make_engine, gate):
    model = make_engine(ScriptedBackend(count, gate=gate), hang_timeout=0.2, hang_exit=60.0)
    stream = model.submit([job("stuck", 9), job("beside", 9)])
    take_all(stream)
    gate.open()
    assert stats_of(model, lambda stats: stats.totals.failed == 2).totals.resets == 1
    assert model.standing.num_hangs == 1


@pytest.mark.parametrize("link", ["process"], indirect=True)
def test_nothing_that_was_counted_is_lost_with_its_process(make_engine):
    model = make_engine(ScriptedBackend(story))
    for i in range(2):
        take_all(model.submit([job(f"job{i}", 5)]))
        before = stats_of(model, lambda stats, i=i: stats.totals.cut == i + 1)
        if i == 0:
            os.kill(child_of(model), signal.SIGKILL)
            wait_for(lambda: model.standing.num_restarts and model.state == "ready")
    assert before.totals.new_tokens == 10
    assert number(before.histograms["request_prompt_tokens"]) == 2


MODULE = "schedule.counters"


def measured():
    return SimpleNamespace(work=Work(), occupancy=Occupancy)


def test_no_more_is_told_than_four_times_a_second_and_the_last_always(clock):
    clock, told, counts, backend = clock(MODULE), [], Counters(), measured()
    for _ in range(1000):
        begin, clock.now = clock.now, clock.now + 0.001
        counts.iterate(begin, 1, 1)
        told.append(counts.tell(backend, 1, 0))
    told = [stats for stats in told if stats]
    assert [stats.totals.new_tokens for stats in told] == [1, 252, 503, 754]  # of sums of floats
    left = counts.wait()
    assert 0 < left <= INTERVAL
    clock.now += left
    assert counts.wait() == 0 and counts.tell(backend, 0, 0).totals.new_tokens == 1000
    clock.now += 1
    assert counts.wait() is None and counts.tell(backend, 0, 0) is None


def test_the_times_of_a_job_add_up(clock):
    clock(MODULE)
    counts, end = Counters(), replace(finished(job(), 3), timings=Timings(1.0, 2.0, 4.0))
    counts.finish(end, was_started=True)
    counts.finish(replace(end, timings=Timings(0.5, 0.0, 0.0)), was_started=False)
    told = counts.tell(measured(), 0, 0).histograms
    totals = {name: told[f"request_{name}_seconds"].total for name in TIMES}
    assert totals == {"queue_time": 1.5, "prefill_time": 2, "decode_time": 4, "inference_time": 6}
    assert told["e2e_request_latency_seconds"].total == 7.5


def test_a_recovery_without_a_job_is_told(clock):
    clock, counts, backend = clock(MODULE), Counters(), measured()
    assert counts.tell(backend, 0, 0)
    clock.now += INTERVAL
    counts.recover("rebuild")
    assert counts.tell(backend, 0, 0).totals.rebuilds == 1


def test_gaps_are_those_of_a_batch_that_goes_on(clock):
    clock, counts = clock(MODULE), Counters()
    for pause in (0.02, 0.02, 100.0, 0.02):
        if pause > 1:
            counts.wait()
        clock.now += pause
        counts.iterate(clock.now - 0.02, 2, 2)
    gaps = counts.tell(measured(), 0, 0).histograms["inter_token_latency_seconds"]
    assert number(gaps) == 4 and gaps.total == pytest.approx(4 * 0.02)


def test_what_takes_time_to_find_out_is_asked_for_every_other_second(clock):
    clock, counts, asked = clock(MODULE), Counters(), []
    backend = SimpleNamespace(work=Work(), occupancy=lambda: asked.append(clock.now) or Occupancy())
    for _ in range(12):
        clock.now += INTERVAL
        counts.iterate(clock.now, 1, 1)
        assert counts.tell(backend, 1, 0) is not None
    assert len(asked) == 2 and asked[1] - asked[0] == OCCUPANCY_INTERVAL


def test_a_copy_is_told_that_nobody_changes_afterwards(clock):
    clock, counts, backend = clock(MODULE), Counters(), measured()
    counts.iterate(clock.now, 1, 1)
    stats = counts.tell(backend, 1, 0)
    counts.iterate(clock.now, 1, 1)
    backend.work.note_pass(3, 4)
    assert (stats.totals.new_tokens, stats.work.rows) == (1, 0)
    assert number(stats.histograms["batch_size"]) == 1


def test_rates_are_of_the_last_seconds():
    standing = Standing("model")
    assert standing.rates(0.0) == Rates()
    for second in range(21):
        standing.note(Stats(float(second), Totals(new_tokens=10 * second, prompt_tokens=second)))
    assert standing.rates(20.0) == Rates(10.0, 1.0)
    assert standing.rates(25.0) == Rates(5.0, 0.5)
    assert standing.rates(20.0 + RECENT) == standing.rates(1000.0) == Rates()


def test_rates_go_on_over_a_restart():
    standing = Standing("model")
    standing.note(Stats(0.0, Totals(new_tokens=50)))
    standing.note(Restarting("killed"))
    standing.note(Stats(5.0, Totals(new_tokens=5)))
    assert standing.stats.totals.new_tokens == 55
    assert standing.rates(5.0) == Rates(1.0, 0.0)


def test_a_mean_is_of_what_came_since():
    before, now = Histogram((2, 0), 2.0), Histogram((4, 2), 12.0)
    assert now.mean_since(before) == 2.5 and now.mean_since(now) is None


def test_numbers_of_tokens_up_to_a_million_have_narrow_buckets():
    bounds = BOUNDS["request_prompt_tokens"]
    assert (bounds[0], bounds[-1]) == (1.0, 1e6)
    assert all(after <= 2.5 * before for before, after in pairwise(bounds))


def test_a_value_on_a_bound_is_below_it():
    counts = counters._Counts((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.5):
        counts.add(value, 2)
    assert counts.copy() == Histogram((4, 2, 2), 11.0)
