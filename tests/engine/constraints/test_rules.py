"""Constraints and forced tokens in the engine: what they do to a job, and not to others."""

import pickle
import threading

import pytest
from llguidance import LLParserLimits

from switchyard import engine
from switchyard.engine.backends.sampling.forcing import Forcing, TextWatch
from switchyard.engine.backends.sampling.matcher import Matcher
from switchyard.engine.grammar import constraints
from switchyard.engine.job import Forced
from switchyard.engine.messages import Chunk, Failed, Finished
from switchyard.engine.sampling import Sampling
from tests.conftest import DEMO
from tests.engine.forced import ending, run
from tests.scripted import ScriptedBackend, job

EOS, END_OF_TURN = 2, 4
PATTERN = constraints.regex("(ab){3}")


@pytest.fixture
def forced(opened):
    """The real generator over a model that says what a test wants."""
    return lambda logits: opened(DEMO, logits=logits)


def hot(seed=0):
    return Sampling(temperature=1.5, seed=seed)


def always(token_id):
    return lambda _: {token_id: 50.0}


def told(backend, constraint=PATTERN, limit=50, **more):
    """Text, why it ended, and the number of its tokens."""
    one = job("a", limit, **{"prompt": (1,), "constraint": constraint, **more})
    end = ending(run(backend, one)["a"])
    return end.text, end.last.finish_reason, end.last.new_tokens


# The end


def test_a_job_ends_with_the_last_token_that_its_constraint_allows(backend):
    text, reason, exactly = told(backend)
    assert (text, reason) == ("ababab", "stop")
    assert "ababab".startswith(told(backend, limit=exactly, sampling=hot())[0])


def test_a_constraint_that_is_complete_at_the_limit_ends_with_stop(backend):
    assert told(backend, constraints.choice(["a"]), 1) == ("a", "stop", 1)


def test_the_limit_and_a_stop_string_cut_a_constrained_text(backend):
    text, reason, _ = told(backend, limit=1)
    assert reason == "length" and "ababab".startswith(text)
    assert told(backend, stop_strings=("ba",))[:2] == ("a", "stop")


@pytest.mark.parametrize("end", [EOS, END_OF_TURN])
def test_every_end_token_ends_where_the_grammar_may_and_not_before(forced, end):
    text, reason, _ = told(forced(always(end)), constraints.regex("[a-z]{2,9}"), 20)
    assert reason == "stop" and 2 <= len(text) <= 9


@pytest.mark.parametrize("special", range(5))
def test_a_special_token_is_no_text_of_a_grammar(forced, tokenizer, special):
    text = tokenizer.token(special)
    found = told(forced(always(special)), constraints.choice([text]), 30)
    assert found[:2] == (text, "stop")


def test_a_text_that_is_waited_for_may_end_in_a_special_token(forced):
    mark, special, other = 5, 3, 300  # "!", "<|im_start|>"
    backend = forced(lambda t: {{1: mark, mark: special}.get(t, other): 0.0})
    assert told(backend, after("!<|im_start|>"), 20)[:2] == ("!ababab", "stop")


def after(text):
    return engine.Constraint(PATTERN.grammar, after=text)


# Others


def test_an_error_of_a_constraint_ends_its_job_alone(backend, monkeypatch):
    """Also one that no step before it showed."""
    bad = constraints.regex("[0-9]{5}")
    accept = Matcher.accept

    def fail(self, token_id):
        if self._constraint == bad:
            raise ArithmeticError("broken")
        accept(self, token_id)

    monkeypatch.setattr(Matcher, "accept", fail)
    events = run(
        backend,
        job("bad", 20, prompt=(1, 300), constraint=bad),
        job("good", 20, prompt=(1, 300), constraint=PATTERN),
        job("free", 20, prompt=(1, 300), ignore_eos=True),
    )
    assert isinstance(events["bad"][-1], Failed) and "broken" in str(events["bad"][-1].error)
    assert ending(events["good"]).text == "ababab"
    assert ending(events["free"]).last.new_tokens == 20


def test_no_token_is_drawn_of_a_job_whose_mask_fails(backend, monkeypatch):
    """Once: the next mask would come, and what was drawn without one may fit."""
    bad = constraints.regex("[^Z]*")
    limit, calls = Matcher.limit, []

    def fail(self):
        if self._constraint == bad:
            calls.append(self)
            if len(calls) == 3:
                raise ArithmeticError("broken")
        return limit(self)

    monkeypatch.setattr(Matcher, "limit", fail)
    events = run(backend, job("bad", 20, prompt=(1, 300), constraint=bad))["bad"]
    assert isinstance(events[-1], Failed) and "broken" in str(events[-1].error)
    assert sum(len(event.token_ids) for event in events if isinstance(event, Chunk)) == 2


def test_a_constraint_that_grows_too_large_is_its_jobs_fault(forced, tokenizer, monkeypatch):
    backend = forced(always(tokenizer.encode("a", 9)[-1]))  # and no end
    limits = LLParserLimits(step_max_items=400, verbose_errors=False)
    monkeypatch.setattr("switchyard.engine.grammar.grammars.LIMITS", limits)
    constraint = constraints.grammar("start: s\ns: s s | /[a-z]/")
    events = run(backend, job("a", 100, prompt=(1,), constraint=constraint))["a"]
    assert len(events) > 5 and type(events[-1].error) is engine.InvalidJob
    assert "at the same position" in str(events[-1].error)


def test_a_constraint_that_compiles_for_long_holds_up_nobody(backend, monkeypatch):
    go = threading.Event()
    matcher = backend._grammars.matcher

    def slow(grammar):
        assert go.wait(20)
        return matcher(grammar)

    monkeypatch.setattr(backend._grammars, "matcher", slow)
    backend.enqueue(job("free", 100, prompt=(1, 300), ignore_eos=True))
    while not any(isinstance(event, Chunk) for event in backend.iterate()):
        pass
    backend.enqueue(job("slow", 20, prompt=(1, 300), constraint=PATTERN))
    events = [event for _ in range(20) for event in backend.iterate()]
    assert sum(isinstance(e, Chunk) and e.identifier == "free" for e in events) == 20
    assert not any(isinstance(e, Chunk) and e.identifier == "slow" for e in events)
    go.set()
    events = []
    while not any(isinstance(e, Finished) for e in events):
        events += [e for e in backend.iterate() if e.identifier == "slow"]
    assert ending(events).text == "ababab"
    backend.cancel("free")


def test_a_job_that_starts_over_begins_its_constraint_anew(backend):
    one = job("a", 50, prompt=(1, 300), constraint=PATTERN)
    backend.enqueue(one)
    while not any(isinstance(event, Chunk) for event in backend.iterate()):
        pass
    backend.reset()
    assert ending(run(backend, one)["a"]).text == "ababab"


def test_a_failed_step_that_is_tried_again_keeps_the_constraint(backend, monkeypatch):
    forward, failures = backend._loaded.model.forward_chunk, iter([False, False, True, False, True])

    def fail_twice(*args, **kwargs):
        if next(failures, False):
            raise RuntimeError("a step failed")
        return forward(*args, **kwargs)

    monkeypatch.setattr(backend._loaded.model, "forward_chunk", fail_twice)
    assert told(backend, prompt=(1, 300))[0] == "ababab"
    assert next(failures, None) is None


# After a text


@pytest.mark.parametrize("prompt", [(1, 300), (1, 700, 800)])
def test_a_constraint_holds_after_its_text_only(backend, tokenizer, prompt):
    budget = Forced(12, "</think>", tuple(tokenizer.encode("</think>", 100)[1:]))
    more = {"prompt": prompt, "forced": budget, "sampling": hot()}
    text, reason, _ = told(backend, after("</think>"), 60, **more)
    thoughts, answer = text.split("</think>")
    assert (answer, reason) == ("ababab", "stop") and len(thoughts) > 12


def test_no_end_comes_before_the_text_that_a_constraint_waits_for(forced):
    backend = forced(lambda _: {EOS: 50.0, END_OF_TURN: 40.0, 300: 30.0})
    assert told(backend, after("</think>"), 10)[1:] == ("length", 10)


def test_no_token_ends_behind_the_text_that_a_constraint_waits_for(grammars):
    """A token such as `>The` would begin the constrained text unseen."""
    pieces = grammars.pieces
    found = grammars.overshooting("e t")
    assert found
    for length, token_ids in found.items():
        for token_id in token_ids:
            text = b"e t"[:length] + pieces[token_id]
            assert b"e t" in text and not text.endswith(b"e t")
    every = {i for ids in found.values() for i in ids}
    missed = [p for i, p in enumerate(pieces) if i not in every and b"e t" in p[:-1]]
    assert not missed


@pytest.mark.parametrize("text", ["h", "th"])
def test_no_token_goes_beyond_the_text_that_a_constraint_waits_for(forced, grammars, text):
    t, h, he = map(grammars.pieces.index, (b"t", b"h", b"he"))
    the = next(i for i, piece in enumerate(grammars.pieces) if b"the" in piece)
    likely = {EOS: 20.0, the: 10.0, he: 9.0, h: 8.0}
    backend = forced(lambda last: {t: 50.0} if (last, text) == (1, "th") else likely)
    assert told(backend, after(text), 20)[0] == text + "ababab"


def test_a_token_may_end_the_text_that_a_constraint_waits_for(grammars):
    """Also one that has the last byte of it twice."""
    token_id = grammars.pieces.index(b"ll")
    found = grammars.overshooting("all")
    assert token_id not in found.get(1, []) and token_id in found[2]


def test_a_text_is_noticed_however_it_falls_into_pieces():
    for pieces in (["</think>"], list("x</think>y"), ["a</th", "ink>b"], ["<", "</thi", "nk>"]):
        watch = TextWatch("</think>")
        for i, piece in enumerate(pieces):
            watch.add(piece.encode())
            assert watch.has_come == ("</think>" in "".join(pieces[: i + 1])), pieces
    assert TextWatch("").has_come


# Forced tokens


def run_forced(backend, forced, **more):
    return [
        token_id
        for event in run(backend, job("a", 12, prompt=(1,), forced=forced, **more))["a"]
        if isinstance(event, Chunk)
        for token_id in event.token_ids
    ]


def test_tokens_are_forced_once_the_budget_is_spent(forced):
    backend = forced(always(300))
    assert run_forced(backend, Forced(4, "</think>", (400, 500, 600))) == (
        [300] * 4 + [400, 500, 600] + [300] * 5
    )
    assert run_forced(backend, Forced(0, "</think>", (400,))) == [400] + [300] * 11


def test_nothing_is_forced_where_the_text_came_in_time(forced, grammars):
    backend = forced(always(300))
    text = grammars.pieces[300].decode()
    assert run_forced(backend, Forced(4, text, (400, 500))) == [300] * 12


def test_forced_tokens_come_one_after_the_other_though_the_text_comes_with_them(grammars):
    forcing = Forcing(Forced(1, grammars.pieces[400].decode(), (400, 500)), grammars.pieces)
    forcing.accept(300)
    seen = []
    while (limit := forcing.limit()) is not None:
        seen.append(limit.token_id)
        forcing.accept(limit.token_id)
    assert seen == [400, 500]


def test_a_forced_token_outside_the_vocabulary_is_refused(make_engine):
    model = make_engine(ScriptedBackend())
    with pytest.raises(engine.InvalidJob, match="vocabulary"):
        model.submit([job("a", forced=Forced(1, "x", (4096,)))])


# Grammars


def test_a_constraint_and_forced_tokens_can_go_to_another_process():
    one = job("a", constraint=PATTERN, forced=Forced(1, "x", (5,)))
    assert pickle.loads(pickle.dumps(one)) == one
