"""Texts of the real generator, and their ends."""

import itertools

import pytest

from switchyard.engine.job import Span
from switchyard.engine.messages import Chunk, Finished
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import GREEDY, chain, free_pages, pieces, prompt
from tests.engine.forced import ending, run
from tests.scripted import job

pytestmark = pytest.mark.over_exl3("hardship")

WORDS = (" return", " import", " class")
HELD = (" return import", "length", None, 2)
HELD_TO_A_TOKEN = (" return import", "stop", " class", 2)

# Text


@pytest.fixture
def said(backend, forced):
    """The end of a job over a model that says " return import class", and " class" from then on."""
    ids = dict(zip(WORDS, pieces(backend, *WORDS), strict=True))
    held = forced(chain(1, *ids.values()))

    def said(max_new_tokens=9, stop_words=(), **more):
        """`stop_words`: tokens."""
        more["stop_token_ids"] = tuple(ids[word] for word in stop_words)
        events = run(held, job("x", max_new_tokens, prompt=(1,), **more))["x"]
        told = [i for e in events if isinstance(e, Chunk) for i in e.token_ids]
        assert told == [*ids.values(), *[ids[" class"]] * 9][: len(told)]
        end = ending(events)
        reason = next((word for word in ids if end.last.stop_reason == ids[word]), None)
        return end.text, end.last.finish_reason, reason or end.last.stop_reason, len(told)

    return said


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"max_new_tokens": 3}, (" return import class", "length", None, 3)),
        ({"max_new_tokens": 2, "stop_strings": (" importance",)}, HELD),
        ({"max_new_tokens": 2, "stop_strings": ("import",)}, (" return ", "stop", "import", 2)),
        ({"stop_strings": ("import",)}, (" return ", "stop", "import", 2)),
        ({"stop_strings": ("port cl",)}, (" return im", "stop", "port cl", 3)),
        ({"stop_strings": ("class", "urn im")}, (" ret", "stop", "urn im", 2)),
        ({"stop_words": (" import",)}, (" return", "stop", " import", 1)),
        ({"stop_strings": (" importance",), "stop_words": (" class",)}, HELD_TO_A_TOKEN),
    ],
    ids=str,
)
@pytest.mark.parameter("stop")
@pytest.mark.parameter("stop_token_ids")
def test_stops_and_the_limit_end_a_text_and_deliver_what_was_held(said, more, expected):
    assert said(**more) == expected


@pytest.mark.parametrize("tail", ["by limit", "by stop token", "by neither"])
def test_of_overlapping_stop_strings_the_one_that_begins_first_ends_the_text(said, tail):
    more = {"by limit": {"max_new_tokens": 3}, "by stop token": {"stop_words": (" class",)}}
    for letters in (" return", "return", "turn", "urn", "n"):
        first = " return".removesuffix(letters)
        for pair in itertools.permutations([f"{letters} im", "n import"]):
            assert said(stop_strings=pair, **more.get(tail, {}))[:2] == (first, "stop")
        for pair in itertools.permutations([f"{letters} import class", " im"]):
            text = " return" if tail == "by stop token" else first
            assert said(stop_strings=pair, **more.get(tail, {}))[:2] == (text, "stop")


def test_a_stop_token_in_the_last_place_ends_the_text_before_it(backend, forced):
    [a] = pieces(backend, " return")
    last = run(forced(chain(1, a, 2)), job("x", 2, prompt=(1,)))["x"][-1]
    assert (last.finish_reason, last.stop_reason, last.new_tokens) == ("stop", None, 1)


def test_jobs_that_start_together_are_told_in_their_order(backend):
    jobs = [job(i, 30, prompt=(1, 2, 3), sampling=GREEDY, ignore_eos=True) for i in "abcd"]
    for one in jobs:
        backend.enqueue(one)
    told = [e.identifier for _ in range(3) for e in backend.iterate() if isinstance(e, Chunk)]
    assert told[:4] == list("abcd")
    for identifier in "abcd":
        backend.cancel(identifier)


@pytest.mark.over_exl3("always")
def test_a_job_that_has_grown_beyond_its_first_page_is_cancelled(backend):
    """What it holds was made inside the generator, and is changed outside."""
    backend.enqueue(job("a", 600, prompt=prompt(1, 200), sampling=GREEDY, ignore_eos=True))
    for _ in range(400):
        backend.iterate()
    [*_, last] = backend.cancel("a")
    assert last.finish_reason == "cancelled" and last.new_tokens >= 399
    assert free_pages(backend) == backend._generator.max_pages


def test_cancelling_tells_the_text_that_was_held_and_the_counts(backend, forced):
    a, b, c = pieces(backend, " return", " import", " class")
    held = forced(chain(1, a, b, c))
    same = (*prompt(90, 600), 1)
    run(held, job("before", 1, prompt=same))
    held.enqueue(job("x", 9, prompt=same, stop_strings=(" importance",)))
    events = [held.iterate() for _ in range(2)][-1]
    assert [event.text for event in events if isinstance(event, Chunk)] == []
    assert held.cancel("x") == [
        Chunk("x", " import", (b,)),
        Finished("x", "cancelled", prompt_tokens=601, new_tokens=2, cached_tokens=600),
    ]
    assert free_pages(held) == held._generator.max_pages


def test_a_character_that_the_last_token_completes_is_whole(backend, forced):
    hf = backend._tokenizer._tokenizer
    emoji = hf.encode("😀", add_special_tokens=False).ids
    [after] = pieces(backend, " class")
    assert len(emoji) > 1
    held = forced(chain(1, *emoji, after))
    for limit, stop_token_ids in ((len(emoji), ()), (9, (after,))):
        one = job("x", limit, prompt=(1,), stop_token_ids=stop_token_ids)
        assert ending(run(held, one)["x"]).text == "😀"


def test_text_after_a_byte_that_is_no_character_is_not_held_back(backend, forced):
    a, b, c, d = pieces(backend, " return", " import", " class", " for")
    hf = backend._tokenizer._tokenizer
    stray = hf.encode("é", add_special_tokens=False).ids[0]
    assert backend._tokenizer.pieces[stray] == "é".encode()[:1]
    held = forced(chain(1, a, stray, b, d, c))
    chunks = [
        event
        for event in run(held, job("x", 9, prompt=(1,), stop_strings=("class",)))["x"]
        if isinstance(event, Chunk)
    ]
    assert [chunk.text for chunk in chunks] == [" return", "\ufffd import", " for", " "]
    assert [i for chunk in chunks for i in chunk.token_ids] == [a, stray, b, d, c]


def test_a_whole_character_behind_stray_bytes_stays_whole(backend, forced):
    hf = backend._tokenizer._tokenizer
    emoji = hf.encode("😀", add_special_tokens=False).ids
    stray = emoji[-1]
    [after] = pieces(backend, " class")
    steps = []
    held = forced(lambda t: {steps.pop(0) if steps else after: 0.0})
    for before in (0, 1, 2, 3, 4, 5, 9):
        steps += [*[stray] * before, *emoji]
        end = ending(run(held, job("x", before + len(emoji) + 2, prompt=(1,)))["x"])
        assert end.text == "\ufffd" * before + "😀 class class"


def test_a_space_before_what_is_decoded_together_is_kept(opened, sentencepiece_path):
    """Decoders of this kind take the space away from the beginning of a text."""
    steps = []
    backend = opened(sentencepiece_path, logits=lambda t: {steps.pop(0) if steps else 5: 0.0})
    hf = backend._tokenizer._tokenizer
    the, *emoji = hf.encode("the 😀 class", add_special_tokens=False).ids
    for stop_strings in ((), (" END", "!")):  # held back for the rest of a stop string, or not
        steps[:] = [the, *emoji]
        one = job("x", 1 + len(emoji), prompt=(1,), stop_strings=stop_strings)
        assert ending(run(backend, one)["x"]).text == " the 😀 class"


# Stops


@pytest.mark.parameter("min_tokens")
def test_min_tokens_forbids_stops_by_token_and_by_string(backend, forced):
    a, b, c, eos = *pieces(backend, " return", " import", " class"), 2
    model = {1: {eos: 5.0, a: 4.0}, a: {eos: 5.0, b: 4.0}, b: {eos: 5.0, c: 4.0}, c: {c: 5.0}}
    backend = forced(lambda t: model.get(t, {c: 0.0}))
    for sampling in (GREEDY, Sampling(top_p=0.5)):  # the nucleus is EOS alone
        early = job("x", 9, prompt=(1,), min_new_tokens=2, sampling=sampling)
        assert ending(run(backend, early)["x"]).text == " return import"
    by_string = job(
        "x", 9, prompt=(1,), min_new_tokens=3, stop_strings=("port", "class"), sampling=GREEDY
    )
    end = ending(run(backend, by_string)["x"])
    assert (end.text, end.last.finish_reason) == (" return import ", "stop")


def test_a_stop_string_counts_if_it_ends_after_min_tokens_wherever_it_began(backend, forced):
    a, b, c = pieces(backend, " return", " import", " class")
    backend = forced(chain(1, a, b, c, a))
    hf = backend._tokenizer._tokenizer
    stray = hf.encode("é", add_special_tokens=False).ids[0]

    def text(model, min_new_tokens, *stop_strings):
        more = {"min_new_tokens": min_new_tokens, "stop_strings": stop_strings}
        return ending(run(model, job("x", 4, prompt=(1,), sampling=GREEDY, **more))["x"]).text

    assert text(backend, 3, "return imp", "port cl") == " return im"
    assert text(backend, 4, "return imp", "port cl") == " return import class return"
    steps = []  # the generator holds back text behind bytes that are no character
    after_stray = forced(lambda t: {steps.pop(0) if steps else c: 0.0})
    steps[:] = [stray, a, b, c]
    assert text(after_stray, 3, "return") == "\ufffd return import class"


@pytest.mark.parametrize("eos", [2, 4], ids=["</s>", "<|im_end|>"])  # the model has two
@pytest.mark.parameter("ignore_eos")
def test_eos_stops_unless_it_is_ignored(backend, forced, eos):
    [a] = pieces(backend, " return")
    model = {1: {a: 0.0}, a: {eos: 0.0}, eos: {a: 0.0}}
    backend = forced(lambda t: model.get(t, {a: 0.0}))
    end = ending(run(backend, job("x", 6, prompt=(1,), sampling=GREEDY))["x"])
    assert (end.text, end.last.finish_reason, end.last.new_tokens) == (" return", "stop", 1)
    end = ending(run(backend, job("x", 6, prompt=(1,), sampling=GREEDY, ignore_eos=True))["x"])
    assert (end.text, end.last.finish_reason) == (" return return return", "length")


def test_tokens_without_text_are_told(backend, forced):
    [a] = pieces(backend, " return")
    backend = forced(chain(1, a, 2, 2))
    events = run(backend, job("x", 3, prompt=(1,), ignore_eos=True))["x"]
    assert [i for e in events if isinstance(e, Chunk) for i in e.token_ids] == [a, 2, 2]


@pytest.mark.parametrize("is_inside", [False, True])
def test_stops_of_a_client_do_not_count_in_a_span(forced, is_inside):
    """Whether the text begins inside the span, or opens it. The model's own end counts there."""
    begin, a, b, end, c = pieces(
        forced(lambda t: {7: 0.0}), *(" for", " import", " return"), " in", " class"
    )
    first = Span("" if is_inside else " for", " in")
    stops = {"stop_token_ids": (a, c), "stop_strings": (" return",), "spans": (first,)}
    backend = forced(chain(1, begin, a, b, end, c))
    prompt = (begin,) if is_inside else (1,)
    last = ending(run(backend, job("x", 9, prompt=prompt, **stops))["x"])
    assert last.text == (" for" * (not is_inside)) + " import return in"
    assert last.last.stop_reason == c
    own = forced(chain(begin, a, 2))
    ended = ending(run(own, job("x", 9, prompt=(begin,), **{**stops, "spans": (Span(""),)}))["x"])
    assert (ended.text, ended.last.finish_reason) == (" import", "stop")
