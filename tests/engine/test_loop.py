import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.engine.messages import Chunk, Finished
from switchyard.engine.schedule.repetition import MAX_PERIOD, MIN_REPEATS, MIN_TOKENS, LoopDetector
from tests.engine.test_engine import take_all
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


def test_a_job_that_asked_for_it_stops_at_a_loop_and_says_so(make_engine):
    backend = ScriptedBackend(looping)
    events = take_all(make_engine(backend).submit([job("a", 100, stop_on_loop=True)]))
    assert events[-1] == Finished("a", "stop", 3, 32, 0, stop_reason="loop")
    assert sum(isinstance(event, Chunk) for event in events) == 32
    assert not backend.active


@pytest.mark.parametrize(
    ("more", "new_tokens"),
    [
        ({}, 100),
        ({"stop_on_loop": True, "min_new_tokens": 50}, 50),
    ],
    ids=["unasked", "minimum"],
)
def test_no_job_stops_at_a_loop_unasked_or_before_its_minimum(make_engine, more, new_tokens):
    events = take_all(make_engine(ScriptedBackend(looping)).submit([job("a", 100, **more)]))
    assert events[-1].new_tokens == new_tokens


def test_a_loop_that_ends_by_itself_in_the_same_step_ends_once(make_engine):
    class WholeJobs(ScriptedBackend):
        def iterate(self):
            events = []
            while self.active:
                events += super().iterate()
            return events

    backend = WholeJobs(looping)
    model = make_engine(backend)
    events = take_all(model.submit([job("a", 50, stop_on_loop=True)]))
    assert events[-1] == Finished("a", "length", 3, 50, 0)
    assert [type(event) for event in events].count(Finished) == 1
    assert model.close(timeout=20)
    assert "cancel" not in [name for name, _ in backend.calls] and not backend.recoveries
