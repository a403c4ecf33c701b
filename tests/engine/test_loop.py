from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard import engine
from switchyard.engine.messages import Chunk, Failed, Finished
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.sampling import Sampling
from switchyard.engine.schedule.repetition import MAX_PERIOD, MIN_REPEATS, MIN_TOKENS, LoopDetector
from tests.conftest import DEMO
from tests.engine.forced import exl2_backend
from tests.engine.reading import take_all, text
from tests.engine.test_counters import stats_of
from tests.scripted import ScriptedBackend, finished, job


def found_at(token_ids):
    """How many tokens it took; None if it found nothing."""
    detector = LoopDetector()
    return next((i for i, token_id in enumerate(token_ids, 1) if detector.add(token_id)), None)


def is_loop(token_ids):
    """By definition."""
    for period in range(1, MAX_PERIOD + 1):
        length = max(MIN_REPEATS * period, MIN_TOKENS)
        tail = token_ids[-length:]
        if len(tail) == length and all(a == b for a, b in zip(tail, tail[period:], strict=False)):
            return True
    return False


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(0, 3), min_size=1, max_size=70),
    st.integers(1, 6),
    st.lists(st.integers(0, 3), max_size=20),
)
def test_it_finds_what_the_definition_says_and_when(before, period, times, after):
    token_ids = before + period * times + after
    expected = next((i for i in range(1, len(token_ids) + 1) if is_loop(token_ids[:i])), None)
    assert found_at(token_ids) == expected


@pytest.mark.parametrize(
    ("period", "expected"), [(1, 32), (8, 32), (9, 36), (64, 256), (65, None), (100, None)]
)
def test_it_takes_four_repeats_and_32_tokens(period, expected):
    assert found_at((list(range(period)) * 40)[:1000]) == expected


def looping(job):
    for i in range(job.max_new_tokens):
        yield Chunk(job.identifier, "ab"[i % 2], (i % 2,))
    yield finished(job, job.max_new_tokens)


@pytest.mark.parametrize(
    ("more", "new_tokens"),
    [({}, 100), ({"stop_on_loop": True, "min_new_tokens": 50}, 50)],
    ids=["unasked", "minimum"],
)
def test_no_job_stops_at_a_loop_unasked_or_before_its_minimum(make_engine, more, new_tokens):
    events = take_all(make_engine(ScriptedBackend(looping)).submit([job("a", 100, **more)]))
    assert events[-1].new_tokens == new_tokens


class Guessing(ScriptedBackend):
    """Several tokens of a job in an iteration, as where they are guessed."""

    def __init__(self, script, num_tokens):
        super().__init__(script)
        self.made_of = (script, num_tokens)
        self._num_tokens = num_tokens

    def iterate(self):
        return [event for _ in range(self._num_tokens) for event in super(Guessing, self).iterate()]


@pytest.mark.parametrize("num_tokens", [1, 2, 5, 7, 1000])
def test_a_loop_ends_the_same_however_many_tokens_a_step_brings(make_engine, num_tokens):
    """Also where the last of them end it otherwise."""
    backend = Guessing(looping, num_tokens)
    model = make_engine(backend)
    events = take_all(model.submit([job("a", 100, stop_on_loop=True)]))
    assert text(events) == "ab" * 16
    assert events[-1] == Finished("a", "stop", 3, 32, 0, stop_reason="loop")
    assert sum(isinstance(event, Finished) for event in events) == 1
    assert model.close(timeout=20)
    assert not backend.active and not backend.recoveries


@pytest.mark.parametrize("num_tokens", [1, 5])
def test_a_loop_costs_those_beside_it_nothing(make_engine, num_tokens):
    backend = Guessing(looping, num_tokens)
    model = make_engine(backend)
    jobs = [job("plain", 200), *(job(f"loop{i}", 200, stop_on_loop=True) for i in range(3))]
    events = take_all(model.submit(jobs))
    ends = {e.identifier: e.stop_reason for e in events if isinstance(e, Finished)}
    assert ends == {"plain": None, "loop0": "loop", "loop1": "loop", "loop2": "loop"}
    assert not any(isinstance(event, Failed) for event in events) and not backend.recoveries


def ending_with_its_loop(job):
    yield from list(looping(job))[:32]
    yield replace(finished(job, 32), cached_tokens=2, draft_tokens=9, accepted_tokens=5)


def failing_behind_its_loop(job):
    yield from list(looping(job))[:33]
    yield Failed(job.identifier, engine.JobFailed("the step behind it"))


@pytest.mark.parametrize(
    ("script", "counted"),
    [
        (ending_with_its_loop, {"cached_tokens": 2, "draft_tokens": 9, "accepted_tokens": 5}),
        (failing_behind_its_loop, {}),
    ],
)
def test_a_loop_at_the_very_end_tells_what_was_counted_and_no_failure(make_engine, script, counted):
    model = make_engine(Guessing(script, 50))
    events = take_all(model.submit([job("a", 100, stop_on_loop=True)]))
    assert events[-1] == replace(Finished("a", "stop", 3, 32, 0, stop_reason="loop"), **counted)


def test_a_loop_of_the_real_generator_ends_the_same_with_guesses_and_costs_nobody(make_engine):
    """The held-back beginning of a stop string must not come from behind the loop, either."""
    fox = Tokenizer(ModelDir.read(DEMO)).encode("the quick brown fox jumps ", 99)
    told = []
    for ngram_draft in (False, True):
        model = make_engine(exl2_backend(DEMO, max_batch_size=4, ngram_draft=ngram_draft))
        sampling = Sampling(temperature=0.0, allowed_token_ids=tuple(fox))
        more = {"prompt": tuple(fox * 8), "sampling": sampling, "ignore_eos": True}
        stops = {"stop_on_loop": True, "stop_strings": ("fox the", "jumps over")}
        kinds = {"neighbour": {}, "loop": {"stop_on_loop": True}, "held": stops}
        jobs = [job(name, 200, **own, **more) for name, own in kinds.items()]
        events = take_all(model.submit(jobs))
        assert not any(isinstance(event, Failed) for event in events), events[-1]
        mine = {name: [event for event in events if event.identifier == name] for name in kinds}
        assert (mine["loop"][-1].accepted_tokens > 0) == ngram_draft
        work = stats_of(model, lambda stats: stats.totals.cut + stats.totals.stopped == 3).work
        assert (work.drafts > 0) == ngram_draft
        told.append(
            [(text(those), those[-1].stop_reason, those[-1].new_tokens) for those in mine.values()]
        )
        assert model.close(timeout=20)
    assert told[0] == told[1]
    assert [reason for _, reason, _ in told[0]] == [None, "loop", "loop"]
