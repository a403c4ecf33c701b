"""Jobs that share too few pages have the texts that they have alone, over the real generator."""

import itertools
import random
from dataclasses import replace

import pytest

from switchyard.engine.grammar import constraints
from switchyard.engine.messages import Chunk, Failed, Finished, Parked, Prefill, Started
from tests.conftest import DEMO
from tests.engine.exl2 import paging
from tests.engine.exl2.drive import GREEDY, free_pages, prompt
from tests.engine.exl2.paging import SEEDED, SIZE
from tests.engine.forced import exl2_backend
from tests.engine.test_prompts import Rows
from tests.scripted import job

pytestmark = pytest.mark.over_exl3("hardship")

LONG = constraints.regex("[a-z ]{3000,4000}")
JOBS = paging.jobs(random.Random(5))


@pytest.fixture
def opened(opened):
    """Their tables of pages are checked after each change."""
    make = opened

    def opened(num_pages, is_overlapping=False, **config):
        config = {"max_batch_size": 16, "cache_tokens": num_pages * SIZE, **config}
        backend = make(is_overlapping=is_overlapping, **config)
        paging.watch(backend)
        return backend

    return opened


def run(backend, jobs, before=lambda: None):
    """Events by identifier; all are there from the beginning."""
    waiting, events = list(jobs), {one.identifier: [] for one in jobs}
    while waiting or backend.num_jobs:
        while waiting and backend.has_room(waiting[0]):
            backend.enqueue(waiting.pop(0))
        before()
        for event in paging.step(backend):
            events[event.identifier].append(event)
        paging.look(backend)
    assert free_pages(backend) == backend._generator.max_pages
    return events


@pytest.fixture(scope="module")
def alone(model_path):
    """What each of the jobs is told where there are pages for all."""
    backend = exl2_backend(model_path, cache_tokens=200 * SIZE, max_batch_size=64)
    backend.open()
    found = paging.told(run(backend, JOBS))
    assert not backend.work.preempted
    backend.close()
    return found


@pytest.mark.parametrize(("num_pages", "is_overlapping"), [(12, False), (6, True)])
def test_jobs_that_share_few_pages_have_their_texts(opened, alone, num_pages, is_overlapping):
    backend = opened(num_pages, is_overlapping)
    events = run(backend, JOBS)
    assert paging.told(events) == alone
    assert backend.work.preempted > 0
    for one in JOBS:  # nothing is told of a return
        kinds = [type(event) for event in events[one.identifier]]
        assert kinds.count(Started) == 1
        moves = [event.is_over for event in events[one.identifier] if type(event) is Parked]
        assert moves == [False, True] * (len(moves) // 2)
        prefills = [event for event in events[one.identifier] if type(event) is Prefill]
        done = [event.done_tokens for event in prefills]
        assert done == sorted(set(done))
        assert all(e.total_tokens == one.num_prompt_tokens - one.num_sequences for e in prefills)


@pytest.mark.parametrize("is_overlapping", [False, True], ids=["in turn", "overlapping"])
def test_jobs_parked_at_borders_have_their_texts(opened, alone, monkeypatch, is_overlapping):
    backend = opened(60, is_overlapping, max_chunk_size=64)
    done = paging.park_at_borders(backend, monkeypatch)
    events = run(backend, JOBS)
    assert paging.told(events) == alone
    last = [[e for e in of_job if type(e) is Prefill][-1:] for of_job in events.values()]
    assert all(e.done_tokens == e.total_tokens for found in last for e in found)
    assert len(done) == backend.work.preempted > 3 * len(JOBS)
    assert any(at == -1 for _, at in done)  # in its prompt


def until(backend, is_so, limit=3000):
    events = []
    for _ in range(limit):
        if is_so():
            return events
        assert backend.num_jobs
        events += paging.step(backend)
        paging.look(backend)
    raise AssertionError("it never was so")


def of(name, length=10, num_tokens=700, **more):
    more = {"ignore_eos": "constraint" not in more, "prompt": prompt(length, length), **more}
    return job(name, num_tokens, **more)


def start(backend, *jobs):
    """The events of a step after each."""
    events = []
    for one in jobs:
        backend.enqueue(one)
        events += backend.iterate()
    return events


def parked(backend):
    return [one.identifier for one in backend._generator.parked]


ENDS = {
    "cancelled": lambda backend: [backend.cancel(name) for name in "abcde"],
    "failed together": lambda backend: backend.reset(),
    "lost by the engine": lambda backend: backend.reconcile([]),
}


@pytest.mark.parametrize("end", ENDS)
def test_parked_jobs_that_end_leave_nothing(opened, end):
    backend = opened(4)
    start(backend, *(of(name, constraint=LONG) for name in "abcd"))
    started = [*backend._jobs.values()]
    rules = [rule for one in started for rule in one.sampler.rules]
    until(backend, lambda: len(parked(backend)) > 1)
    backend.enqueue(of("e"))  # has not started
    closed, num_sampled = [], [one.num_sampled for one in started]
    for rule in rules:
        rule.close = lambda rule=rule: closed.append(rule)
    ENDS[end](backend)
    assert [one.num_sampled for one in started] == num_sampled
    assert {id(rule) for rule in closed} == {id(rule) for rule in rules}
    assert backend.num_jobs == 0 and not backend._jobs and not parked(backend)
    assert free_pages(backend) == 4 and backend.has_room(of("next", 800))


def test_a_parked_job_tells_its_text_so_far_when_it_is_cancelled(opened):
    backend = opened(4)
    events = start(backend, *(of(name) for name in "abcd"))
    events += until(backend, lambda: parked(backend))
    name = parked(backend)[0]
    *rest, last = backend.cancel(name)
    told = [e for e in (*events, *rest) if type(e) is Chunk and e.identifier == name]
    num_told = sum(len(e.token_ids) for e in told)
    assert (last.finish_reason, last.new_tokens) == ("cancelled", num_told)


def test_a_step_that_fails_loses_no_token_of_a_parked_job(opened, alone, monkeypatch):
    backend = opened(4)
    forward, numbers = backend._generator._forward, itertools.count()

    def fail(*args):
        if parked(backend) and next(numbers) % 40 == 20:
            raise RuntimeError("out of memory")
        return forward(*args)

    monkeypatch.setattr(backend._generator, "_forward", fail)
    some = [one for one in JOBS if one.num_sequences == 1][:7]
    expected = {one.identifier: alone[one.identifier] for one in some}
    assert paging.told(run(backend, some)) == expected
    assert backend.work.retries > 1 and backend.work.preempted


def test_a_job_gives_way_to_no_lower_priority(opened):
    backend = opened(3)
    start(backend, of("low"), of("high", priority=1), of("last"))
    ends = [
        e.identifier for e in until(backend, lambda: not backend.num_jobs) if type(e) is Finished
    ]
    assert backend.work.preempted and ends[0] == "high"


def test_who_holds_the_most_pages_gives_way_then_who_came_last(opened):
    backend = opened(6)
    start(backend, of("large", 600, client="one"), *(of(name, client=name) for name in "abc"))
    until(backend, lambda: parked(backend))
    assert parked(backend) == ["large"]
    backend.reset()
    start(backend, *(of(name, 200, client=name) for name in "abcdef"))
    until(backend, lambda: parked(backend))
    assert parked(backend)[0] == "f"


@pytest.mark.parametrize(
    ("priorities", "first"),
    [({}, "c"), ({"a": 1, "b": 1, "d": 1}, "d")],
    ids=["who came first", "the more urgent"],
)
def test_of_parked_jobs_one_returns_first(opened, priorities, first):
    backend = opened(4)
    start(backend, *(of(name, priority=priorities.get(name, 0)) for name in "abcd"))
    until(backend, lambda: len(parked(backend)) > 1)
    were_parked = parked(backend)
    until(backend, lambda: len(parked(backend)) < len(were_parked))
    assert {*were_parked} - {*parked(backend)} == {first}


def test_a_parked_job_returns_before_newcomers_that_are_no_more_urgent(opened):
    backend = opened(4)
    start(backend, of("large", 500), of("b", 200, priority=1), of("c", 5, 40, priority=2))
    until(backend, lambda: parked(backend) == ["large"])
    until(backend, lambda: free_pages(backend) > 0)
    assert not backend.has_room(of("next", 1, 2))
    assert backend.has_room(of("urgent", 1, 2, priority=1))


def test_two_jobs_of_the_whole_cache_both_end(opened):
    backend = opened(4, max_batch_size=2)
    both = [of(name, 100, 4 * SIZE - 100) for name in "ab"]
    events = run(backend, both)
    assert {one.identifier: events[one.identifier][-1].new_tokens for one in both} == {
        "a": 924,
        "b": 924,
    }
    assert 1 <= backend.work.preempted < 30


@pytest.mark.parametrize("num_tokens", [SIZE, 4 * SIZE])
def test_a_prompt_of_all_pages_but_a_token_gets_that_token(opened, num_tokens):
    backend = opened(num_tokens // SIZE)
    one = of("one", num_tokens - 1, 1)
    assert backend.has_room(one)
    assert run(backend, [one])["one"][-1].new_tokens == 1


def test_a_newcomer_waits_while_running_jobs_are_expected_to_need_the_pages(opened):
    backend = opened(7)
    for i in range(5):
        assert backend.has_room(of(f"{i}", 1))
        start(backend, of(f"{i}", 1, usual_tokens=250))
    assert not backend.has_room(of("next", 1))  # the pages that are left are theirs


def test_a_pair_is_expected_to_need_pages_for_both_texts(opened):
    backend = opened(8)
    pair = {"negative_prompt": (7,), "sampling": replace(GREEDY, cfg_scale=1.5)}
    start(backend, *(of(f"{i}", 2, usual_tokens=250, **pair) for i in range(3)))
    assert not backend.has_room(of("next", 1))  # they will need more than two pages


@pytest.mark.over_exl3("never")
@pytest.mark.parametrize(
    "way", [{"ngram_draft": True}, {"draft_model": DEMO}], ids=["n-grams", "model"]
)
def test_jobs_that_guess_have_their_texts_where_pages_are_few(way):
    some = [
        of(f"{n}", 1, 120, prompt=tuple(range(300, 300 + n)), sampling=GREEDY)
        for n in (40, 200, 250, 330)
    ]
    plain, guessing = exl2_backend(DEMO), exl2_backend(DEMO, cache_tokens=4 * SIZE, **way)
    try:
        texts = []
        for backend in (plain, guessing):
            backend.open()
            paging.watch(backend)
            texts.append(paging.told(run(backend, some)))
        assert texts[0] == texts[1]
        assert guessing.work.preempted and guessing.work.drafts
    finally:
        plain.close()
        guessing.close()


def test_a_list_of_jobs_says_which_are_parked(make_engine, model_path):
    backend = exl2_backend(model_path, cache_tokens=4 * SIZE, max_batch_size=8)
    model = make_engine(backend, max_batch_size=8)
    stream = model.submit([of(name, 10, 700) for name in "abcd"])
    seen = {}
    while not stream.is_finished:
        assert not any(isinstance(event, Parked) for event in stream.take(20))
        for one in model.jobs(timeout=0):
            seen.setdefault(one.identifier, set()).add((one.state, one.num_pages > 0))
    states = set().union(*seen.values())
    assert states >= {("decode", True), ("parked", False)} and ("parked", True) not in states


def test_all_choices_of_a_prompt_end_though_the_cache_holds_few(opened):
    backend = opened(4, max_batch_size=32)
    many = [of(f"{i}", 500, 20, sampling=replace(SEEDED, seed=i)) for i in range(32)]
    events = run(backend, many)
    assert {events[one.identifier][-1].new_tokens for one in many} == {20}


@pytest.mark.over_exl3("always")
@pytest.mark.parametrize("is_overlapping", [False, True], ids=["in turn", "overlapping"])
def test_a_page_that_an_answer_has_begun_is_found_for_it_alone(opened, is_overlapping):
    backend = opened(8, is_overlapping)
    one = of("one", 250, 60, sampling=GREEDY)
    text = one.prompt + tuple(paging.told(run(backend, [one]))["one"][1])
    begun = of("begun", prompt=text[SIZE:] + prompt(1, 9), num_tokens=2)
    assert run(backend, [begun])["begun"][-1].cached_tokens == 0
    following = of("following", prompt=text + prompt(2, 9), num_tokens=2)
    assert run(backend, [following])["following"][-1].cached_tokens == len(text) - 1


def test_a_return_changes_nothing_of_what_is_told_of_a_prompt_that_was_cached(opened):
    backend = opened(8)
    run(backend, [of("first", 257, 2)])
    start(backend, of("again", 257, 9))
    generator = backend._generator
    generator.park(generator.active_jobs[0])
    for page in [*generator.unreferenced_pages.values()]:
        page.clear()  # as if others had taken all
    events = until(backend, lambda: not backend.num_jobs, limit=9)  # one for the prompt
    assert not any(isinstance(event, Prefill) for event in events)
    assert (events[-1].cached_tokens, events[-1].new_tokens) == (256, 9)


def test_a_job_that_has_returned_runs_for_a_while_before_it_is_parked_again(opened):
    backend = opened(4)
    start(backend, of("a", 246), of("b", 226), of("ends", 10, 14), of("last", 100))
    until(backend, lambda: parked(backend) == ["last"])
    until(backend, lambda: not parked(backend))
    until(backend, lambda: parked(backend))
    assert parked(backend) == ["b"]


@pytest.mark.parametrize("is_overlapping", [False, True], ids=["in turn", "overlapping"])
@pytest.mark.parametrize("cancelled", [None, "returned", "a"])
def test_a_more_urgent_job_gets_the_next_page(opened, is_overlapping, cancelled):
    """It waits for a job that has just returned, and comes before one that is parked."""
    backend, urgent = opened(6, is_overlapping), {"priority": 1}

    def waiting():
        return [one.identifier for one in backend._generator.active_jobs if one.is_short]

    start(backend, of("parked", 20), of("returned", 20))
    until(backend, lambda: backend._jobs["returned"].num_sampled > 70)
    start(backend, of("a", 246, **urgent), of("b", 226, **urgent), of("waits", 196, **urgent))
    start(backend, of("ends", 10, 14, **urgent))
    until(backend, waiting)
    assert waiting() == ["waits"] and parked(backend) == ["parked"]
    if cancelled:
        backend.cancel(cancelled)
    else:
        launched = []  # after each step, which of the others has begun the next
        is_over = lambda: launched.append(backend._generator._step) or len(parked(backend)) == 2  # noqa: E731
        until(backend, is_over, limit=40)
        assert (len(launched) > 5 and launched.count(None) <= 2) or not is_overlapping, launched
    until(backend, lambda: not waiting(), limit=2)
    assert cancelled == "a" or "parked" in parked(backend)
    until(backend, lambda: not backend.num_jobs)


def parked_at(backend, one, num_tokens):
    """The job, parked after so many tokens."""
    start(backend, one)
    found = backend._jobs[one.identifier]
    until(backend, lambda: found.num_sampled == num_tokens)
    backend._generator.park(found)
    return found


def test_a_job_returns_after_the_prompts_that_are_computed(opened):
    backend = opened(12, max_chunk_size=64)
    start(backend, of("other", 20))
    parked_at(backend, of("one"), 5)
    backend.enqueue(of("urgent", 600, priority=1))
    urgent = backend._jobs["urgent"]
    until(backend, lambda: not parked(backend))
    assert urgent.is_decoding


def test_a_job_that_nearly_fills_the_cache_returns(opened):
    backend = opened(1)
    parked_at(backend, of("one", 100, SIZE - 100), 140)
    until(backend, lambda: not backend.num_jobs, limit=20)


def test_the_last_token_of_a_text_needs_no_page(opened):
    backend = opened(2)
    run(backend, [of("a", 100, SIZE + 1 - 100), of("b", 90, SIZE + 1 - 90)])
    assert not backend.work.preempted


def test_a_return_that_fails_after_its_passes_fails_the_job(opened):
    backend = opened(4)
    parked_at(backend, of("one", 10, 100), 20).begin_decoding = lambda: 1 / 0
    assert type(until(backend, lambda: not backend.num_jobs)[-1]) is Failed


def test_a_job_may_be_parked_again_after_64_tokens(opened):
    backend = opened(4)
    one = parked_at(backend, of("one", 10, 200), 20)
    until(backend, lambda: one.is_decoding)
    until(backend, lambda: one.may_be_parked)
    assert one.num_sampled == 20 + 64


def test_a_prompt_that_is_scored_is_not_parked_meanwhile(opened):
    """Its logprobs would begin anew."""
    backend = opened(3, max_chunk_size=64)
    start(backend, of("a", 250, usual_tokens=1), of("scored", 400, prompt_logprobs=1))
    until(backend, lambda: parked(backend))
    assert parked(backend) == ["a"]


def test_a_pairs_second_text_gets_pages_too(opened):
    backend = opened(4)
    pair = {"negative_prompt": prompt(1, 246), "sampling": replace(GREEDY, cfg_scale=1.5)}
    start(backend, of("pair", 20, **pair), of("b"), of("c"))
    until(backend, lambda: parked(backend), limit=30)
    assert parked(backend) == ["c"]


@pytest.mark.parametrize("is_overlapping", [False, True], ids=["in turn", "overlapping"])
def test_the_page_after_cached_ones_knows_which_page_it_follows(opened, is_overlapping):
    """Though nothing of the prompt is computed. `run` looks at the pages."""
    backend = opened(8, is_overlapping)
    run(backend, [of("first", 257, 2)])
    assert run(backend, [of("again", 257, 300)])["again"][-1].cached_tokens == 256


@pytest.mark.parametrize("num_faults", [2, 3])
def test_a_return_that_fails_is_tried_again_twice(opened, alone, monkeypatch, num_faults):
    backend = opened(8)
    one = next(one for one in JOBS if one.identifier == "seeded")
    generator, left = backend._generator, [None] * num_faults
    forward_chunk = generator.model.forward_chunk

    def fail(*args, preprocess_only=False, **kwargs):
        if preprocess_only and generator.active_jobs[0].was_parked and left:
            left.pop()
            raise RuntimeError("out of memory")
        return forward_chunk(*args, preprocess_only=preprocess_only, **kwargs)

    monkeypatch.setattr(generator.model, "forward_chunk", fail)
    start(backend, one)
    events = until(backend, lambda: backend._jobs[one.identifier].num_sampled == 9)
    generator.park(generator.active_jobs[0])
    for page in [*generator.unreferenced_pages.values()]:
        page.clear()
    events += until(backend, lambda: not backend.num_jobs)
    assert not left and isinstance(events[-1], Finished) == (num_faults == 2)
    if num_faults == 2:
        assert alone[one.identifier][1][-20:] == [t for e in events[-21:-1] for t in e.token_ids]


@pytest.mark.parametrize("is_forced", [False, True], ids=["few pages", "parked at borders"])
def test_prompts_in_rows_of_few_lengths_return_with_the_same_texts(
    opened, alone, monkeypatch, is_forced
):
    """As a GPU's captured passes compute them: the padding of a row needs pages of its own job."""
    backend = opened(60 if is_forced else 6, is_overlapping=True, max_chunk_size=64)
    rows = Rows(backend)
    if is_forced:
        paging.park_at_borders(backend, monkeypatch)
    some = [one for one in JOBS if one.num_sequences == 1 and one.prompt_logprobs is None]
    expected = {one.identifier: alone[one.identifier] for one in some}
    assert paging.told(run(backend, some)) == expected
    assert backend.work.preempted and rows.shapes
