"""Each field of Sampling, by what comes out of the real generator; the text of the whole."""

import dataclasses
import math

import pytest

from switchyard import engine
from switchyard.engine.job import Healing
from switchyard.engine.messages import Chunk
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.model.tokens.vocabulary import Vocabulary
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import GREEDY, chain, draws, pieces, prompt
from tests.engine.forced import ending, exl2_backend, run
from tests.scripted import job

pytestmark = pytest.mark.over_exl3("hardship")

PROBABILITIES = {300: 0.45, 301: 0.40, 302: 0.10, 303: 0.05}


@pytest.fixture(scope="module")
def skewed(model_path, library):
    logits = {i: math.log(p) for i, p in PROBABILITIES.items()}
    backend = exl2_backend(model_path, logits=lambda t: logits)
    backend.open()
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def tokenizer(model_path):
    return Tokenizer(ModelDir.read(model_path))


def ids_of(events):
    return [i for e in events if isinstance(e, Chunk) for i in e.token_ids]


FILTERS = {
    "top_k": ({"top_k": 2}, {300, 301}),
    "top_p": ({"top_p": 0.8}, {300, 301}),
    "top_a": ({"top_a": 0.6}, {300, 301}),  # 0.6 * 0.45² = 0.12
    "min_p": ({"min_p": 0.5}, {300, 301}),
    "tfs": ({"tfs": 0.2}, {300}),  # 0.25, 0.25, 0.05 of the second differences, by 0.55
    "typical_p": ({"typical_p": 0.3}, {301}),  # 1.07 nats expected, 0.92 are nearest
    "temperature": ({"temperature": 0.0}, {300}),
    "logit_bias": ({"logit_bias": ((302, 100.0),)}, {302}),
    "banned_token_ids": ({"banned_token_ids": (300, 303)}, {301, 302}),
    "allowed_token_ids": ({"allowed_token_ids": (302, 303)}, {302, 303}),
    "xtc": ({"xtc_probability": 1.0, "xtc_threshold": 0.1}, {302, 303}),
    "mirostat": ({"mirostat": True, "mirostat_tau": 0.7, "mirostat_eta": 0.0}, {300, 301}),
    "smoothing_factor": ({"smoothing_factor": 50.0}, {300, 301}),
    "smoothing_curve": ({"smoothing_factor": 0.5, "smoothing_curve": 90.0}, {300, 301}),
    "dynatemp": ({"dynatemp_high": 0.02, "dynatemp_low": 0.02}, {300, 301}),
    "skew": ({"skew": -9.0}, {300}),
    "temperature before the filters": ({"temperature": 0.3, "min_p": 0.3}, {300, 301}),
    "temperature behind": ({"temperature": 3, "temperature_last": True, "min_p": 0.5}, {300, 301}),
    "xtc behind a temperature of 0": ({"temperature": 0.0, "xtc_probability": 1.0}, {300}),
    "xtc before a last temperature of 0": (
        {"temperature": 0.0, "temperature_last": True, "xtc_probability": 1.0},
        {302},
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_what_can_be_drawn(skewed, name):
    sampling, expected = FILTERS[name]
    drawn = set(draws(skewed, sampling, times=120))
    if name in ("smoothing_factor", "dynatemp"):
        assert drawn <= expected and 300 in drawn
    else:
        assert drawn == expected


def test_what_is_set_to_nothing_changes_nothing(backend):
    """Every field at its default takes the same path as a bare temperature."""
    one = job("a", 20, prompt=prompt(3, 20), sampling=Sampling(seed=3))
    plain = ids_of(run(backend, one)["a"])
    all_off = Sampling(seed=3, top_k=4096, top_p=1.0, typical_p=1.0, tfs=1.0)
    assert ids_of(run(backend, dataclasses.replace(one, sampling=all_off))["a"]) == plain


def test_xtc_spares_the_end_and_the_newline(opened, tokenizer):
    newline = tokenizer.encode("\n", 9)[-1]
    for spared in (2, newline):
        backend = opened(logits=lambda t, spared=spared: {spared: 0.0, 301: 0.0, 302: -0.1})
        sampling = {"xtc_probability": 1.0, "allowed_token_ids": (spared, 301, 302)}
        assert 301 in draws(backend, sampling, times=60)  # else only 302


def test_a_dynamic_temperature_behind_the_filters_replaces_a_temperature_of_0(skewed):
    heated = {"temperature": 0.0, "dynatemp_low": 5.0, "dynatemp_high": 5.0, "min_p": 0.5}
    assert set(draws(skewed, {**heated, "temperature_last": True}, times=60)) == {300, 301}
    assert set(draws(skewed, heated, times=60)) == set(PROBABILITIES)


def test_a_temperature_of_a_hundredth_is_not_greedy(opened):
    backend = opened(logits=lambda t: {300: 0.0, 301: 0.0})
    assert set(draws(backend, {"temperature": 0.01}, times=40)) == {300, 301}


def test_a_negative_seed_is_another_than_its_positive(backend):
    def ids(seed):
        one = job("a", 20, prompt=prompt(3, 20), sampling=Sampling(seed=seed), ignore_eos=True)
        return ids_of(run(backend, one)["a"])

    assert ids(-1) == ids(-1) != ids(1)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"repetition_penalty": 1.5}, [301, 300]),  # 300 is in the prompt
        ({"repetition_penalty": 1.5, "repetition_range": 1}, [300, 301]),
        ({"repetition_penalty": 1.5, "repetition_range": 0, "repetition_decay": 2}, [300, 301]),
        ({"frequency_penalty": -0.7, "logit_bias": ((301, 0.6),)}, [301, 301]),
    ],
    ids=str,
)
def test_ranges_of_penalties(opened, sampling, expected):
    backend = opened(logits=lambda t: {300: 4.0, 301: 3.5})
    greedy = Sampling(temperature=0.0, **sampling)
    one = job("x", 2, prompt=(300, 5, 6), sampling=greedy)
    assert ids_of(run(backend, one)["x"]) == expected


def test_dry_ends_a_repetition_and_breakers_save_it(opened):
    backend = opened(logits=chain(300, 301, 302, 303, 300))
    loop = {"temperature": 0.0, "dry_multiplier": 60.0, "dry_base": 2.0, "dry_allowed_length": 3}

    def ids(**more):
        one = job("x", 12, prompt=(300,), sampling=Sampling(**loop, **more))
        return ids_of(run(backend, one)["x"])

    period = [301, 302, 303, 300]
    assert ids()[:6] == [301, 302, 303, 300, 301, 302] and ids() != period * 3
    assert ids(dry_breakers=(301, 303)) == period * 3
    assert ids(dry_range=4) == period * 3


# Banned strings


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    return Vocabulary(tokenizer.pieces)


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_banned_strings_never_come(backend, vocabulary, temperature):
    free = job("a", 120, prompt=prompt(4, 9), ignore_eos=True)
    free = dataclasses.replace(free, sampling=Sampling(temperature=temperature, seed=1))
    text = ending(run(backend, free)["a"]).text
    middle = len(text) // 2
    strings = [text[5:7], text[middle : middle + 6], text[-3:-1]]
    banned = tuple(vocabulary.ban(s) for s in strings)
    sampling = dataclasses.replace(free.sampling, banned_strings=banned)
    jobs = [dataclasses.replace(free, identifier=i, sampling=sampling) for i in "bcd"]
    events = run(backend, *jobs)  # equal ones: their pages are shared
    for one in jobs:
        end = ending(events[one.identifier])
        assert end.last.new_tokens == 120
        assert not any(s.encode() in end.text.encode() for s in strings)


def test_a_string_is_banned_however_it_falls_into_tokens(opened, vocabulary, tokenizer):
    a, b, c = (tokenizer.encode(t, 9)[-1] for t in ("re", "turn", "port"))
    backend = opened(logits=lambda t: {a: 3.0} if t == 7 else {b: 3.0, c: 2.0})
    one = job("x", 2, prompt=(7,), sampling=GREEDY)
    assert ids_of(run(backend, one)["x"]) == [a, b]
    for strings in (["return"], ["ret"], ["etu"], ["turn"], ["return", "q"], ["q", "return"]):
        banned = tuple(map(vocabulary.ban, strings))
        sampling = Sampling(temperature=0.0, banned_strings=banned)
        assert ids_of(run(backend, dataclasses.replace(one, sampling=sampling))["x"]) == [a, c]


# Token healing


def healed(tokenizer, prompt_ids):
    piece = tokenizer.piece(prompt_ids[-1])
    allowed = Vocabulary(tokenizer.pieces).beginning_with(piece)
    return {"prompt": prompt_ids[:-1], "healing": Healing(piece.decode(), allowed)}


def test_a_healed_prompt_goes_on_inside_its_last_token(opened, tokenizer):
    [word] = pieces(opened(logits=lambda t: {7: 0.0}), " return")
    start = tokenizer.encode("x re", 9)
    backend = opened(logits=lambda t: {word: 5.0, 300: 6.0})
    one = job("x", 1, sampling=GREEDY, **healed(tokenizer, start))
    end = ending(run(backend, one)["x"])
    prefix = tokenizer.piece(start[-1]).decode()
    assert " return".startswith(prefix)
    assert end.text == " return".removeprefix(prefix) and end.last.new_tokens == 1


def test_only_the_first_token_is_bound_by_healing(opened, tokenizer):
    backend = opened(logits=lambda t: {300: 6.0})
    start = tokenizer.encode("x re", 9)
    one = job("x", 3, sampling=Sampling(seed=1), **healed(tokenizer, start))
    first, *rest = ids_of(run(backend, one)["x"])
    assert tokenizer.piece(first).startswith(tokenizer.piece(start[-1])) and rest == [300, 300]


# Guidance


@pytest.mark.over_exl3("always")
@pytest.mark.parametrize("lengths", [(5, 5), (1, 40), (700, 5), (3, 600), (600, 600)])
def test_guidance_combines_what_both_prompts_say(backend, lengths):
    """Against the logprobs of each alone, step by step."""
    wanted, unwanted = (prompt(i, n) for i, n in enumerate(lengths))
    scale = 2.5
    guided = Sampling(temperature=0.0, cfg_scale=scale)
    more = {"negative_prompt": unwanted, "sampling": guided, "ignore_eos": True}
    one = job("a", 6, prompt=wanted, **more)
    beside = job("b", 12, prompt=prompt(9, 30), sampling=GREEDY, ignore_eos=True)
    alone = ids_of(run(backend, beside)["b"])
    together = run(backend, beside, one)
    assert ids_of(together["b"]) == alone
    ids = ids_of(together["a"])
    assert len(ids) == 6
    for i, token_id in enumerate(ids):
        tops = [dict(logprobs_behind(backend, (*start, *ids[:i]))) for start in (wanted, unwanted)]
        scores = {t: tops[1][t] + scale * (tops[0][t] - tops[1][t]) for t in tops[0]}
        assert scores[token_id] == pytest.approx(max(scores.values()), abs=1e-3)
    generator = backend._generator
    assert len(generator.unreferenced_pages) == generator.max_pages


def logprobs_behind(backend, token_ids):
    one = job("p", 1, prompt=token_ids, num_logprobs=4096, ignore_eos=True)
    return next(e for e in run(backend, one)["p"] if isinstance(e, Chunk)).logprobs[0].top


def test_a_pair_takes_two_places_and_the_pages_of_both(opened):
    backend = opened(max_batch_size=2, cache_tokens=1024)
    pair = {"negative_prompt": (1, 2), "sampling": Sampling(cfg_scale=1.5)}
    assert backend.has_room(job("a", 5, prompt=(1,) * 767, **pair))
    assert not backend.has_room(job("a", 5, prompt=(1,) * 768, **pair))
    backend.enqueue(job("b", 5))
    assert not backend.has_room(job("a", 5, **pair))
    backend.cancel("b")
    backend.enqueue(job("a", 5, **pair))
    assert not backend.has_room(job("b", 5))
    backend.cancel("a")
    assert len(backend._generator.unreferenced_pages) == 4
    assert engine.Job("a", (1,), 5, negative_prompt=(2,)).num_pages(256, 5) == 2
