"""What the cache serves is what was computed, whoever has been at its pages meanwhile."""

import random
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from switchyard.engine.messages import Chunk, Failed, Finished
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import GREEDY, prompt, states
from tests.engine.forced import run
from tests.scripted import job

pytestmark = pytest.mark.over_exl3("hardship")

SIZE = 256
GUIDED = replace(GREEDY, cfg_scale=1.5)


def of(name, token_ids, num_tokens=8, **more):
    sampling = more.pop("sampling", GREEDY)
    return job(name, num_tokens, prompt=token_ids, sampling=sampling, ignore_eos=True, **more)


def cached(backend):
    """Keys and values of every full page, by its hash."""
    return {
        page.phash: torch.cat(
            [
                of_layer[:, page.page_index * SIZE :][:, :SIZE].flatten(2).float()
                for of_layer in states(backend)
            ],
            -1,
        )[0].clone()
        for page in backend._generator.all_pages
        if page.kv_position == SIZE
    }


def check(backend, before):
    """Returns how many of the pages are still served."""
    kept = {phash: found for phash, found in cached(backend).items() if phash in before}
    for phash, found in kept.items():
        assert torch.allclose(found, before[phash], atol=1e-2)
    return len(kept)


@pytest.fixture(params=[False, True], ids=["in turn", "overlapping"])
def opened(opened, request):
    """A cache of six pages; a newcomer first takes those that have keys and values."""
    return partial(opened, is_overlapping=request.param, cache_tokens=6 * SIZE)


def fill(backend):
    """All pages; the oldest are two of a prompt, the next a part of that and of no other."""
    run(backend, of("others", prompt(8, 700), 2))
    run(backend, of("kept", prompt(1, 600)))
    run(backend, of("newest", prompt(2, 700), 2))
    return cached(backend)


def until_told(backend, identifier):
    while not any(type(e) is Chunk and e.identifier == identifier for e in backend.iterate()):
        pass


def test_a_row_that_is_filled_up_spoils_no_page_that_its_job_does_not_come_to(opened):
    backend = opened(max_chunk_size=1024)
    run(backend, of("kept", prompt(1, 600)))
    before = cached(backend)
    backend.enqueue(of("long", prompt(5, 450), 4))
    backend.enqueue(of("short", prompt(6, 20), 600))
    until_told(backend, "short")
    backend.cancel("short")
    check(backend, before)


@pytest.mark.over_exl3("always")
@pytest.mark.parametrize("length", [1, 257])
def test_a_pass_in_flight_spoils_no_page_of_a_job_that_is_cancelled(opened, length):
    backend = opened()
    run(backend, of("others", prompt(8, 700), 2))
    run(backend, of("kept", prompt(1, 600)))
    before = cached(backend)
    backend.enqueue(of("stream", prompt(5, 10), 700))
    for _ in range(5):
        backend.iterate()
    backend.enqueue(of("cancelled", prompt(6, length), 300 if length == 1 else 200))
    backend.iterate()
    backend.cancel("cancelled")
    backend.cancel("stream")
    check(backend, before)


@pytest.mark.parametrize("is_pair", [False, True])
@pytest.mark.parametrize("length", [1, 257])
def test_a_job_without_a_token_spoils_no_page(opened, length, is_pair):
    backend = opened()
    before = fill(backend)
    none = Sampling(temperature=0.0, cfg_scale=1.5, allowed_token_ids=(5,), banned_token_ids=(5,))
    negative = prompt(7, length) if is_pair else ()
    one = of("none", prompt(6, length), 200, sampling=none, negative_prompt=negative)
    events = run(backend, one)["none"]
    assert isinstance(events[-1], Failed)
    assert check(backend, before)


@pytest.mark.over_exl3("always")
@pytest.mark.parametrize(
    ("num_passes", "one"),
    [
        (0, of("failing", prompt(6, 500))),
        (0, of("failing", prompt(6, 500), prompt_logprobs=1)),
        (1, of("failing", prompt(6, 300), negative_prompt=prompt(7, 300), sampling=GUIDED)),
    ],
    ids=["plain", "scored", "the second of a pair"],
)
def test_a_prompt_that_fails_half_way_spoils_no_page(opened, num_passes, one):
    backend = opened()
    before = fill(backend)
    model, left = backend._generator.model, [None] * num_passes
    forward_chunk = model.forward_chunk

    def fail(*args, **kwargs):
        forward_chunk(*args, **kwargs)
        if not left:
            raise RuntimeError("behind the last layer")
        left.pop()

    model.forward_chunk = fail
    events = run(backend, one)["failing"]
    model.forward_chunk = forward_chunk
    assert isinstance(events[-1], Failed) and not left
    assert check(backend, before)


def test_pages_that_a_job_never_came_to_are_as_before(opened):
    backend = opened()
    before = fill(backend)
    run(backend, of("short", prompt(7, 20), 1))
    backend.enqueue(of("early", prompt(6, 20), 700))
    until_told(backend, "early")
    backend.cancel("early")
    assert check(backend, before) >= len(before) - 2


def test_a_page_is_not_left_for_one_that_its_job_still_computes(opened):
    """A prompt is the text of a job that is about to fill its first page, and then cancelled."""
    backend = opened(max_chunk_size=64)
    one = of("one", prompt(5, 200), 100)
    token_ids = ids_of(run(backend, one)["one"])
    backend.reset()
    backend.enqueue(one)
    found = []
    while backend._jobs["one"].num_sampled < 54:
        found += backend.iterate()
    backend.enqueue(of("other", (one.prompt + token_ids)[:290], 10))
    while backend._jobs["one"].num_sampled < 57:
        found += backend.iterate()
    backend.cancel("other")
    found += drain(backend)
    assert ids_of(e for e in found if e.identifier == "one") == token_ids


def test_a_newcomer_takes_the_last_pages_of_a_prefix_first(opened):
    backend = opened(cache_tokens=10 * SIZE)
    chat = of("chat", prompt(1, 1600), 4)
    run(backend, chat)  # seven pages
    run(backend, of("other", prompt(2, 1200), 4))  # five, and three are free
    assert run(backend, chat)["chat"][-1].cached_tokens >= 5 * SIZE


class Page:
    """As the library has it, without contents."""

    def __init__(self, free, serial):
        self.free, self.ref_count, self.access_serial = free, 1, serial

    def release(self, serial):
        self.ref_count, self.access_serial = 0, serial
        self.free[id(self)] = self

    def add_ref_unique(self, serial):
        del self.free[id(self)]
        self.ref_count, self.access_serial = 1, serial


@pytest.mark.parametrize("seed", range(5))
def test_a_growing_text_takes_what_was_released_first(backend, seed):
    """Whatever prompts take by their hashes, and release again, meanwhile."""
    from switchyard.engine.backends.exl2.paging.pool import Pool  # once the backend is installed

    chance, free = random.Random(seed), {}
    table = SimpleNamespace(access_serial=0, unreferenced_pages=free)
    pages, pool = [Page(free, 0) for _ in range(6)], Pool(table)
    for _ in range(200):
        table.access_serial += 1
        held = [page for page in pages if page.ref_count]
        match chance.choice(["release", "release", "reuse", "take"]):
            case "release" if held:
                for page in chance.sample(held, min(2, len(held))):
                    page.release(table.access_serial)
            case "reuse" if free:
                chance.choice([*free.values()]).add_ref_unique(table.access_serial)
            case "take":
                oldest = min(free.values(), key=lambda page: page.access_serial, default=None)
                assert pool.take() is oldest


def test_no_page_is_kept_without_the_page_before_it(opened):
    """Chats that go on, some with a common beginning, two at a time, in a cache that is too small
    for all. Each page that is served has its whole prefix.
    """
    backend = opened(cache_tokens=7 * SIZE)
    chance = random.Random(1)
    system = prompt(9, 300)
    chats = [(system if i % 2 else ()) + prompt(i, 200) for i in range(6)]
    for turn in range(12):
        two = chance.sample(range(6), 2)
        for i in two:
            more = prompt(100 + turn, chance.randrange(20, 300))
            chats[i] = (chats[i] + more)[: 4 * SIZE]
        run(backend, *(of(f"chat{i}", chats[i], chance.randrange(1, 9)) for i in two))
        pages = backend._generator.all_pages
        whole = {page.phash for page in pages if page.kv_position == SIZE}
        kept = [page for page in pages if page.kv_position and page.prev_hash is not None]
        assert all(page.prev_hash in whole for page in kept)


def test_pages_stay_in_their_places_when_the_last_job_has_ended(opened):
    """The library would defragment: its kernel fails for quantized caches of some widths."""
    backend = opened()
    for i in range(8):  # more pages than there are, in an order that is no longer the cache's
        run(backend, of("short", prompt(i, 300), 2), of("long", prompt(9, 300 + 60 * i), 2))
    assert [page.page_index for page in backend._generator.all_pages] == list(range(6))


@pytest.mark.over_exl3("always")
def test_a_page_that_gives_way_to_its_equal_is_not_read_any_more(opened):
    """The second of two equal jobs shares the page of the first once that is full. A newcomer
    writes to the page that it had before.
    """
    alone, together = (opened(cache_tokens=4 * SIZE) for _ in range(2))
    text = prompt(1, 200)
    expected = run(alone, of("alone", text, 150))["alone"]
    together.enqueue(of("first", text, 150))
    until_told(together, "first")
    together.enqueue(of("second", text, 150))
    newcomer, events = of("newcomer", prompt(2, 200), 20), []
    while not together.has_room(newcomer):
        events += together.iterate()
    names = {event.identifier for event in events if type(event) is Finished}
    assert not names, "no page was shared"
    together.enqueue(newcomer)
    events += drain(together)
    assert ids_of(e for e in events if e.identifier == "second") == ids_of(expected)


def ids_of(events):
    return tuple(t for e in events if type(e) is Chunk for t in e.token_ids)


def drain(backend):
    events = []
    while backend.num_jobs:
        events += backend.iterate()
    return events


@pytest.mark.over_exl3("always")
def test_a_pair_leaves_full_pages_as_its_texts_alone_would(opened):
    """Its sequences reach the borders of their pages at different steps."""
    pair, plain = (opened(cache_tokens=16 * SIZE) for _ in range(2))
    wanted, unwanted = prompt(1, 250), prompt(2, 200)
    text = ids_of(run(pair, of("a", wanted, 320, negative_prompt=unwanted, sampling=GUIDED))["a"])
    assert len(text) == 320
    for name, start in (("wanted", wanted), ("unwanted", unwanted)):
        run(plain, of(name, start + text[:-1], 1))
    expected, left = cached(plain), cached(pair)
    assert len(expected) == 4  # two of each text
    assert expected.keys() == left.keys()
    assert check(pair, expected) == 4
