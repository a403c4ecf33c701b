"""Jobs of the real generator side by side: texts, pages, room."""

from dataclasses import replace

import pytest

from switchyard.engine.messages import Chunk, Finished, Prefill, Started
from switchyard.engine.sampling import Sampling
from switchyard.engine.stats import Occupancy
from tests.engine.exl2.drive import GREEDY, free_pages, prompt
from tests.engine.forced import ending, run
from tests.scripted import job

pytestmark = pytest.mark.over_exl3("hardship")


@pytest.mark.over_exl3("always")
def test_jobs_in_a_batch_give_the_texts_that_they_give_alone(backend):
    jobs = [
        job(f"job{i}", 20 + i, prompt=prompt(i, 1 + 37 * i), sampling=GREEDY) for i in range(12)
    ]
    together = run(backend, *jobs)
    for one in jobs:
        alone = run(backend, one)[one.identifier]
        assert ending(alone).text == ending(together[one.identifier]).text
        assert ending(alone).last.new_tokens == ending(together[one.identifier]).last.new_tokens
    assert free_pages(backend) == backend._generator.max_pages


def test_jobs_that_wait_for_the_next_step_have_their_places(forced):
    backend = forced(lambda t: {7: 0.0}, max_batch_size=2)
    for identifier in "ab":
        assert backend.has_room(job("next", prompt=(1,)))
        backend.enqueue(job(identifier, prompt=(1,)))
    assert not backend.has_room(job("next", prompt=(1,)))


def test_no_pass_waits_for_tokens_when_jobs_come_and_go(opened, monkeypatch):
    backend, plain = opened(is_overlapping=True, max_batch_size=4), opened()
    from switchyard.engine.backends.exl2.generator import Generator  # once it is installed

    launched = []
    launch_ahead = Generator._launch_ahead
    monkeypatch.setattr(
        Generator, "_launch_ahead", lambda *args: launched.append(launch_ahead(*args))
    )
    jobs = [
        job(f"job{i}", 3 + 2 * i, prompt=prompt(i, 10 + 40 * i), sampling=GREEDY) for i in range(12)
    ]
    together = run(backend, *jobs)
    assert launched and not any(launched)
    for one in jobs:
        alone = run(plain, one)[one.identifier]
        assert ending(alone).text == ending(together[one.identifier]).text


def test_events_come_as_started_prefill_chunks_and_the_end(backend):
    events = run(backend, job("a", 3, prompt=prompt(50, 700), sampling=GREEDY, ignore_eos=True))[
        "a"
    ]
    kinds = [type(event) for event in events]
    assert kinds[0] is Started and kinds[-1] is Finished
    prefills = [event for event in events if isinstance(event, Prefill)]
    assert [(p.done_tokens, p.total_tokens) for p in prefills] == [(512, 699), (699, 699)]
    ids = [token_id for e in events if isinstance(e, Chunk) for token_id in e.token_ids]
    assert len(ids) == 3 and all(type(token_id) is int for token_id in ids)


@pytest.mark.over_exl3("always")
def test_a_prompt_seen_before_is_not_computed_again(backend):
    same = prompt(60, 900)
    first = run(backend, job("a", 2, prompt=same, sampling=GREEDY))["a"][-1]
    second = run(backend, job("b", 2, prompt=same, sampling=GREEDY))["b"][-1]
    assert (first.prompt_tokens, first.cached_tokens) == (900, 0)
    assert (second.prompt_tokens, second.cached_tokens) == (900, 899)


def test_what_it_does_and_holds_is_told(opened, is_overlapping):
    backend = opened(is_overlapping=is_overlapping)
    before = replace(backend.work)
    one = job("a", 5, prompt=prompt(61, 600), sampling=GREEDY, ignore_eos=True)
    backend.enqueue(one)
    while backend.work.rows == before.rows:
        backend.iterate()
    assert backend.occupancy().referenced_pages == one.num_pages(256, 1)
    while backend.num_jobs:
        backend.iterate()
    assert backend.work.rows - before.rows == 5
    assert backend.work.computed_rows - before.computed_rows == 5
    assert backend.occupancy() == Occupancy(referenced_pages=0, cached_pages=2)
    backend.rebuild()
    assert backend.occupancy() == Occupancy() and backend.work.rows > before.rows


def test_a_prompt_starts_once_those_before_leave_it_a_part_of_an_iteration(backend):
    backend.enqueue(job("long", 2, prompt=prompt(70, 1500)))
    for _ in range(2):
        assert not backend.has_room(job("next"))  # of 1500 tokens 512 are done, then 1024
        backend.iterate()
    assert backend.has_room(job("other", prompt=prompt(1, 7000)))  # 475 of 512 are taken
    backend.enqueue(job("other", prompt=prompt(1, 10)))
    assert not backend.has_room(job("next"))
    events = backend.iterate()
    assert {e.identifier for e in events if isinstance(e, Started)} == {"other"}
    assert not backend._generator.pending_jobs
    for identifier in ("long", "other"):
        backend.cancel(identifier)


def test_the_end_of_a_prompt_shares_an_iteration_with_the_head_of_the_next(backend):
    """Beside a stream, with 64 tokens for prompts, and twice as many while one waits."""
    backend.enqueue(job("stream", 99, prompt=(1,), ignore_eos=True))
    for _ in range(4):  # in which nothing waits
        backend.iterate()

    def computed(events):
        return {e.identifier: e.done_tokens for e in events if isinstance(e, Prefill)}

    backend.enqueue(job("a", prompt=prompt(81, 81)))
    assert computed(backend.iterate()) == {"a": 64}
    assert backend.has_room(job("b", prompt=prompt(82, 1000)))
    backend.enqueue(job("b", prompt=prompt(82, 1000)))
    assert computed(backend.iterate()) == {"a": 80, "b": 32}
    done = 32
    for budget, others_wait in ((64, True), (128, True), (128, True), (128, False), (64, False)):
        if others_wait:
            assert not backend.has_room(job("c"))
        last, done = done, computed(backend.iterate())["b"]
        assert done in (last + budget, 999) or (done % 256 == 0 and last < done < last + budget)
    for identifier in ("stream", "a", "b"):
        backend.cancel(identifier)


def test_there_is_room_only_for_as_many_pages_and_jobs_as_exist(opened):
    backend = opened(cache_tokens=1024, max_batch_size=2)
    big = job("big", 300, prompt=prompt(1, 511), ignore_eos=True)
    pair = job("pair", negative_prompt=(1, 2))  # of two places, and two pages
    assert backend.has_room(big) and backend.has_room(pair)
    backend.enqueue(big)
    for _ in range(2):  # before it has its pages and after
        assert backend.has_room(big) or backend._generator.pending_jobs
        assert not backend.has_room(job("a", prompt=prompt(2, 512)))
        assert not backend.has_room(pair)
        backend.iterate()
    backend.enqueue(job("a", ignore_eos=True))
    for _ in range(2):
        assert not backend.has_room(job("b"))
        backend.iterate()
    backend.cancel("big")
    assert backend.has_room(job("b"))
    backend.cancel("a")
    assert free_pages(backend) == 4


@pytest.mark.parameter("seed")
def test_the_same_seed_gives_the_same_text_alone_and_in_a_batch(backend):
    def seeded(identifier, seed):
        return job(identifier, 20, sampling=Sampling(temperature=1.0, seed=seed))

    alone = ending(run(backend, seeded("a", 5))["a"]).text
    together = run(backend, seeded("a", 5), seeded("b", 6), seeded("c", 5))
    assert ending(together["a"]).text == ending(together["c"]).text == alone
    assert ending(together["b"]).text != alone
    assert ending(run(backend, seeded("d", -5))["d"]).text != alone


@pytest.mark.parametrize("chunk", [17, 100])
def test_prompts_in_chunks_that_end_inside_pages_give_the_same_text(opened, chunk):
    """Beside a running stream; some begin alike, and share pages that are not full yet."""
    backend = opened(max_chunk_size=chunk, max_batch_size=8)
    generator = backend._generator
    generator.validate_cache = generator._ExLlamaV2DynamicGenerator___validate_cache
    shared = prompt(99, 600)
    prompts = [prompt(i, n) for i, n in enumerate((2, 17, 255, 256, 257, 400, 700))]
    prompts += [shared[:n] + prompt(n, 50) for n in (100, 300, 512, 600)]
    jobs = [job(f"job{i}", 20, prompt=p, sampling=GREEDY) for i, p in enumerate(prompts)]
    stream = job("stream", 300, prompt=prompt(7, 5), sampling=GREEDY, ignore_eos=True)
    together = run(backend, stream, *jobs)
    for one in jobs:
        events = together[one.identifier]
        done = [e.done_tokens for e in events if isinstance(e, Prefill)]
        assert done == sorted(done) and (not done or done[-1] == len(one.prompt) - 1)
        backend.reset()
        assert ending(events).text == ending(run(backend, one)[one.identifier]).text
    long = [e for e in together["job6"] if isinstance(e, Prefill)]
    assert all(e.total_tokens == 699 for e in long)
    assert len(long) >= -(-699 // chunk)
    assert free_pages(backend) == generator.max_pages
