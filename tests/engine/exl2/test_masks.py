"""Jobs whose masks are late, beside others, over the real generator: a test releases each mask."""

import threading
from dataclasses import replace

import pytest

from switchyard import engine
from switchyard.engine.grammar import bills, constraints
from switchyard.engine.messages import Chunk, Failed, Finished
from switchyard.engine.sampling import Sampling
from tests.conftest import DEMO
from tests.engine.exl2.drive import GREEDY, free_pages
from tests.engine.forced import ending, exl2_backend, run
from tests.engine.masks import Source, rest, until_late
from tests.scripted import job

WORDS = constraints.regex("[a-z ]{70,400}")
GUIDED = replace(GREEDY, cfg_scale=1.5)
WAYS = {
    "in turn": {},
    "overlapping": {"is_overlapping": True},
    "guessed by n-grams": {"ngram_draft": True},
    "guessed by a model": {"draft_model": DEMO},
}
PAIR = {"sampling": GUIDED, "negative_prompt": (1, 700, 800, 900)}
KINDS = {"one": {"sampling": GREEDY}, "drawn": {"sampling": Sampling(seed=3)}, "pair": PAIR}


def slow(kind="one", **more):
    return job("slow", 16, prompt=(1, 300, 400), constraint=WORDS, **KINDS[kind], **more)


def free(name="free", tokens=48):
    return job(name, tokens, prompt=(1, 500, 600), sampling=GREEDY, ignore_eos=True)


@pytest.fixture(scope="module", params=WAYS)
def opened(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("switchyard.engine.grammar.masks.num_cores", lambda: 4)
        backend = exl2_backend(DEMO, **WAYS[request.param])
        backend.open()
    yield backend
    backend.close()


@pytest.fixture
def backend(opened, monkeypatch):
    monkeypatch.setattr(opened, "_bills", bills.Bills())
    yield opened
    opened.reset()


@pytest.fixture
def held(backend, monkeypatch):
    """Holds the masks of the slow job, after some."""
    sources = []

    def make(num_free):
        monkeypatch.setattr(backend._grammars, "matcher", backend._grammars.matcher)
        sources.append(Source(backend, WORDS, num_free))
        return sources[-1]

    yield make
    for source in sources:
        source.open()


@pytest.mark.parametrize(("kind", "num_free"), [("one", 0), ("drawn", 4), ("pair", 4)])
def test_the_others_go_on_while_one_mask_is_late(backend, held, kind, num_free):
    alone = [ending(run(backend, one)[one.identifier]) for one in (slow(kind), free())]
    source = held(num_free)
    backend.enqueue(slow(kind))
    backend.enqueue(free())
    events = until_late(backend, source)
    late = [event for _ in range(6) for event in backend.iterate()]
    assert {event.identifier for event in late if isinstance(event, Chunk)} == {"free"}
    assert sum(isinstance(event, Chunk) for event in late) >= 6
    source.open()
    ends = rest(backend, [*events, *late])
    assert [ends[name].text for name in ("slow", "free")] == [one.text for one in alone]
    found = [(ends[name].last.new_tokens, ends[name].last.finish_reason) for name in ends]
    told = [(one.last.new_tokens, one.last.finish_reason) for one in alone]
    assert sorted(found) == sorted(told)
    assert free_pages(backend) == backend._generator.max_pages


def of_slow(events):
    return [event for event in events if event.identifier == "slow"]


def test_masks_that_come_one_by_one_give_the_same_text(backend, held):
    alone = ending(run(backend, slow())["slow"])
    source, events = held(0), []
    backend.enqueue(slow())
    backend.enqueue(free(tokens=200))
    while "slow" in backend._jobs:
        events += until_late(backend, source)
        before = of_slow(events)
        source.release()
        while of_slow(events) == before:
            events += backend.iterate()
    events += backend.cancel("free")
    assert "".join(e.text for e in of_slow(events) if isinstance(e, Chunk)) == alone.text


def test_a_job_alone_takes_no_step_until_its_mask_comes(backend, held):
    source, wake = held(3), threading.Event()
    backend.enqueue(slow())
    until_late(backend, source)
    assert backend.is_waiting(wake.set) and not wake.is_set()
    source.release()
    assert wake.wait(20)
    assert not backend.is_waiting(lambda: None)
    assert any(isinstance(event, Chunk) for event in backend.iterate())


def test_a_late_job_can_be_cancelled_and_leaves_its_pages(backend, held):
    source = held(3)
    backend.enqueue(slow())
    until_late(backend, source)
    told = backend.cancel("slow")
    assert isinstance(told[-1], Finished) and told[-1].finish_reason == "cancelled"
    assert free_pages(backend) == backend._generator.max_pages


def test_a_generator_recovers_while_a_mask_is_late(backend, held):
    alone = ending(run(backend, slow())["slow"])
    for recover in (backend.reset, backend.rebuild):
        source = held(3)
        backend.enqueue(slow())
        until_late(backend, source)
        recover()
        source.open()
        assert ending(run(backend, slow())["slow"]).text == alone.text


def test_a_failed_step_is_tried_again_while_a_mask_is_late(backend, held, monkeypatch):
    alone = ending(run(backend, slow())["slow"])
    source = held(3)
    backend.enqueue(slow())
    backend.enqueue(free())
    events = until_late(backend, source)
    forward, left = backend._loaded.model.forward_chunk, [RuntimeError("a step failed")]

    def fail_once(*args, **more):
        if left:
            raise left.pop()
        return forward(*args, **more)

    monkeypatch.setattr(backend._loaded.model, "forward_chunk", fail_once)
    events += backend.iterate()
    source.open()
    ends = rest(backend, events)
    assert ends["slow"].text == alone.text
    assert not left and backend.work.retries == 1


def test_a_mask_that_never_comes_ends_its_job_alone(backend, held, monkeypatch):
    source = held(3)
    backend.enqueue(slow())
    backend.enqueue(free())
    events = until_late(backend, source)
    monkeypatch.setattr("switchyard.engine.backends.sampling.matcher.MASK_TIMEOUT", 0.0)
    ends = rest(backend, events)
    assert isinstance(ends["slow"].last.error, engine.ConstraintTooSlow)
    assert ends["free"].last.new_tokens == 48


def test_tokens_that_are_slow_to_take_come_one_a_step(backend, monkeypatch):
    """llguidance holds the GIL meanwhile, so each is followed by a rest."""
    jobs = [replace(slow(), identifier=name) for name in "abc"]
    alone = ending(run(backend, jobs[0])["a"])
    monkeypatch.setattr("switchyard.engine.backends.sampling.matcher.QUICK", -1.0)
    now = [0.0]
    monkeypatch.setattr(backend._turns, "_clock", lambda: now[0])
    events = []
    for one in jobs:
        backend.enqueue(one)
    while backend.num_jobs:
        now[0] += 1000.0
        taken = backend.iterate()
        assert sum(isinstance(event, Chunk) for event in taken) <= 1
        events += taken
    for name in "abc":
        told = "".join(e.text for e in events if isinstance(e, Chunk) and e.identifier == name)
        assert told == alone.text


def test_a_slow_constraint_ends_its_job_and_its_clients_next_ones_sooner(backend, monkeypatch):
    monkeypatch.setattr(bills, "MAX_SECONDS", 0.0)
    monkeypatch.setattr(bills, "CREDIT", 0.0)

    def tokens(client, **more):
        one = replace(slow(), client=client, max_new_tokens=40, **more)
        backend.enqueue(one)
        backend.enqueue(free())
        ends = rest(backend, [])
        assert ends["free"].last.new_tokens == 48
        return ends["slow"].last

    first = tokens("a")
    assert isinstance(first, Failed) and isinstance(first.error, engine.ConstraintTooSlow)
    assert "ms are allowed on average" in str(first.error) and first.error.param == "constraint"
    for one in (slow(), slow()):
        told = run(backend, replace(one, client="a"))["slow"]
        assert isinstance(told[-1].error, engine.ConstraintTooSlow)
        assert not any(isinstance(event, Chunk) for event in told)  # not one token
    told = run(backend, replace(slow(), client="b"))["slow"]
    assert sum(len(event.token_ids) for event in told if isinstance(event, Chunk)) >= 12
    assert backend.work.mask_seconds > 0
