"""Draws of whole batches, against a plain reference of the published definitions."""

import itertools
import math
import random
import weakref
from collections import Counter

import numpy as np
import pytest
import torch

from switchyard.engine.backends.sampling.draw import NONE_LEFT, Draw
from switchyard.engine.backends.sampling.rules import Among, Only, Without
from switchyard.engine.backends.sampling.sampler import Sampler
from switchyard.engine.sampling import Sampling
from tests.scripted import job

SIZE = 40  # of the vocabulary
PADDED = 64
NUM_ROWS = 100
PROMPT = (1, 2, 3, 3, 7, 9)
COMPLETION = (5, 5, 2, 11, 30)
CPU, GPU = torch.device("cpu"), pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)

# One value of each setting; all combinations of them are tried.
SETTINGS = {
    "temperature": 0.7,
    "top_k": 12,
    "top_p": 0.85,
    "min_p": 0.03,
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.3},
    "bias": {"logit_bias": ((4, 1.5), (8, -3.0))},
    "masks": {"banned_token_ids": (0, 6), "allowed_token_ids": tuple(range(34))},
}
SUBSETS = [names for n in range(len(SETTINGS) + 1) for names in itertools.combinations(SETTINGS, n)]


def made(names):
    fields = {}
    for name in names:
        value = SETTINGS[name]
        fields.update(value if isinstance(value, dict) else {name: value})
    return fields


def logits_of(seed):
    rng = random.Random(seed)
    return [rng.gauss(0, 1.5) for _ in range(SIZE)]


def reference(logits, s):
    """The probability of each token, in double precision."""
    values = list(logits)
    for token in {*PROMPT, *COMPLETION}:
        value = values[token]
        values[token] = value / s.repetition_penalty if value > 0 else value * s.repetition_penalty
    for token, count in Counter(COMPLETION).items():
        values[token] -= s.presence_penalty + count * s.frequency_penalty
    for token, bias in s.logit_bias:
        values[token] += bias
    allowed = set(s.allowed_token_ids or range(SIZE)) - set(s.banned_token_ids)
    weights = {i: values[i] / s.temperature for i in allowed}
    ranked = sorted(allowed, key=lambda i: -weights[i])
    if s.top_k:
        ranked = ranked[: s.top_k]
    probs = softmax(weights, ranked)
    if s.top_p < 1:
        sums = itertools.accumulate(probs[i] for i in ranked)
        ranked = ranked[: 1 + sum(total < s.top_p for total in sums)]
    if s.min_p:
        ranked = [i for i in ranked if probs[i] >= s.min_p * probs[ranked[0]]]
    return softmax(weights, ranked)


def softmax(weights, kept):
    top = max(weights[i] for i in kept)
    powers = {i: math.exp(weights[i] - top) for i in kept}
    return {i: power / sum(powers.values()) for i, power in powers.items()}


def sampler_of(seed, rules=(), completion=COMPLETION, prompt=PROMPT, **fields):
    one = job(f"job{seed}", 1000, prompt=prompt, sampling=Sampling(seed=seed, **fields))
    sampler = Sampler(one, (), [b"x"] * SIZE, (), rules)
    for token_id in completion:
        sampler.accept(token_id)
    return sampler


def rows_of(*logits):
    rows = torch.full((len(logits), PADDED), 50.0)  # what pads the vocabulary isn't drawn
    rows[:, :SIZE] = torch.tensor(logits)
    return rows


def p_value(counts, probs, total):
    """The p-value of Pearson's chi-squared test; rare tokens are taken together."""
    rare = [i for i, p in probs.items() if p * total < 5]
    cells = [(counts[i], p * total) for i, p in probs.items() if i not in rare]
    if rare:
        cells.append((sum(counts[i] for i in rare), sum(probs[i] for i in rare) * total))
    if len(cells) == 1:
        return 1.0
    chi_square = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    half = torch.tensor([(len(cells) - 1) / 2, chi_square / 2], dtype=torch.float64)
    return torch.special.gammaincc(*half).item()


@pytest.mark.parametrize("device", [CPU, GPU], ids=str)
@pytest.mark.parametrize("names", SUBSETS, ids="-".join)
def test_frequencies_are_those_of_the_definitions(names, device, request):
    fields = made(names)
    logits = logits_of(len(names))
    samplers = [sampler_of(seed, **fields) for seed in range(NUM_ROWS)]
    draw, counts = Draw(SIZE, device), Counter()
    rows = rows_of(logits).repeat(NUM_ROWS, 1).to(device)
    for _ in range(request.config.getoption("--draws") // NUM_ROWS):
        counts.update(draw(samplers, rows.clone(), None).token_ids)
    probs = reference(logits, samplers[0].sampling)
    assert set(counts) <= set(probs)
    assert p_value(counts, probs, counts.total()) > 0.001


LONE = [  # what a row is drawn with by itself
    {"skew": 1.0},
    {"skew": -0.7, "typical_p": 0.9},
    {"mirostat": True, "mirostat_tau": 2.0, "mirostat_eta": 0.4},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    {"temperature": 0.0, "temperature_last": True, "xtc_probability": 0.5},
    {"dynatemp_low": 0.3, "dynatemp_high": 2.0},
    {"smoothing_factor": 0.2},
]


@pytest.mark.parametrize("own", [made(SETTINGS), *LONE], ids=",".join)
def test_a_row_is_drawn_alike_in_any_company(own):
    """Token by token, beside others that come and go, of other lengths and settings."""
    rng = random.Random(5)

    def fields():
        more = rng.choice([{}, {"temperature": 0.0}, {"top_k": 200}, {"typical_p": 0.8}, *LONE])
        return made(rng.sample(sorted(SETTINGS), rng.randrange(len(SETTINGS)))) | more

    alone, among = sampler_of(1, **own), sampler_of(1, **own)
    draw, draw_alone = Draw(SIZE, CPU), Draw(SIZE, CPU)
    for step in range(60):
        logits = logits_of(step)
        others = [
            sampler_of(100 * step + i, completion=PROMPT * rng.randrange(4), **fields())
            for i in range(rng.randrange(6))
        ]
        samplers = [*others, among]
        rng.shuffle(samplers)
        rows = rows_of(*[logits if s is among else logits_of(rng.random()) for s in samplers])
        token_id = draw(samplers, rows, None).token_ids[samplers.index(among)]
        assert [token_id] == draw_alone([alone], rows_of(logits), None).token_ids
        among.accept(token_id)
        alone.accept(token_id)


class Fixed:
    """A rule that always says the same."""

    is_ready, is_done = True, False

    def __init__(self, limit):
        self._limit = limit

    def limit(self):
        return self._limit


def among(*token_ids, size=PADDED):
    bits = np.zeros(size, dtype=np.uint8)
    bits[list(token_ids)] = 1
    return Fixed(Among(torch.from_numpy(np.packbits(bits, bitorder="little"))))


def test_rules_bind_their_own_row_alone():
    samplers = [
        sampler_of(1, temperature=0.0),
        sampler_of(2, [among(3, 17, 63)], temperature=0.0),
        sampler_of(3, [Fixed(Without((20, 21)))], temperature=0.0),
        sampler_of(4, [among(3, 4), Fixed(Only(33))], temperature=0.0),
        sampler_of(5, [among()], temperature=0.0),
        sampler_of(6, [Fixed(None)], temperature=0.0),
    ]
    logits = [float(i == 20) * 9 + float(i == 21) * 8 + float(i == 17) for i in range(SIZE)]
    logits[7] = 3.0
    drawn = Draw(SIZE, CPU)(samplers, rows_of(*[logits] * 6), None)
    assert drawn.token_ids == [20, 17, 7, 33, -1, 20]


@pytest.mark.parametrize(
    ("dtype", "fields"),
    [(torch.float32, made(SETTINGS)), (torch.float16, {"temperature": 0.0})],
    ids=["all settings", "half"],
)
def test_logprobs_are_of_the_models_own_logits_and_as_many_as_a_row_asks_for(dtype, fields):
    asked = [0, 3, None, 1]
    jobs = [
        job(f"job{i}", prompt=PROMPT, sampling=Sampling(seed=i, **fields), num_logprobs=number)
        for i, number in enumerate(asked)
    ]
    samplers = [Sampler(one, (), [b"x"] * SIZE, ()) for one in jobs]
    rows = rows_of(*map(logits_of, range(4))).to(dtype)
    expected = rows[:, :SIZE].double().log_softmax(-1)
    drawn = Draw(SIZE, CPU)(samplers, rows, None)
    assert drawn.logprobs[2] is None
    for number, token_id, told, row in zip(asked, *drawn, expected, strict=True):
        if number is not None:
            best = row.topk(number)
            assert (told.token_id, [i for i, _ in told.top]) == (token_id, best.indices.tolist())
            found = [told.logprob, *(value for _, value in told.top)]
            assert found == pytest.approx([row[token_id].item(), *best.values.tolist()], abs=1e-5)


def test_logprobs_are_over_all_that_the_model_has():
    """Also what the tokenizer has no tokens for, as those of prompts are."""
    one = Sampler(job("a", 9, sampling=Sampling(temperature=0.0), num_logprobs=0), (), [], ())
    logits = [*logits_of(1), *[2.0] * (PADDED - SIZE)]
    size = PADDED - 4
    [token_id], [told] = Draw(SIZE, CPU, size)([one], torch.tensor([logits]), None)
    assert token_id < SIZE
    expected = torch.tensor(logits[:size]).log_softmax(-1)[token_id].item()
    assert told.logprob == pytest.approx(expected, abs=1e-5)


def test_a_row_without_a_token_is_told_where_logprobs_are_asked_for():
    one = Sampler(job("a", num_logprobs=2), (), [b"x"] * SIZE, (), [among()])
    assert Draw(SIZE, CPU)([one], rows_of(logits_of(0)), None).token_ids == [NONE_LEFT]


@pytest.mark.parametrize("num_accepted", [1, 2, 3])
def test_tokens_that_came_together_are_all_penalized(num_accepted):
    """As where some were guessed."""
    sampler = sampler_of(0, completion=(), temperature=0.0, presence_penalty=2.0)
    draw, ranked = Draw(SIZE, CPU), [31, 32, 33, 34]
    logits = [0.0] * SIZE
    for i, token_id in enumerate(ranked):
        logits[token_id] = 5.0 - 0.1 * i
    assert draw([sampler], rows_of(logits), None).token_ids == ranked[:1]
    for token_id in ranked[:num_accepted]:
        sampler.accept(token_id)
    assert draw([sampler], rows_of(logits), None).token_ids == [ranked[num_accepted]]


def likeliest(*samplers, **logits):
    """The greedy choices among tokens of these logits, and all others at 0."""
    row = [logits.get(f"t{i}", 0.0) for i in range(SIZE)]
    return Draw(SIZE, CPU)(samplers, rows_of(*[row] * len(samplers)), None).token_ids


def test_no_token_beyond_its_bits_is_among_those_of_a_rule():
    assert likeliest(sampler_of(0, [among(3, size=16)], temperature=0.0), t20=1.0) == [3]


def test_a_bias_is_added_behind_the_penalties():
    fields = {"repetition_penalty": 2.0, "logit_bias": ((5, 4.0),)}
    assert likeliest(sampler_of(0, temperature=0.0, **fields), t5=2.0, t20=4.5) == [5]


def test_what_pads_a_shorter_text_has_not_come():
    fields = {"temperature": 0.0, "presence_penalty": 2.0}
    short, long = sampler_of(0, **fields), sampler_of(1, completion=range(1, 39), **fields)
    assert likeliest(short, long, t0=1.0) == [0, 0]


def test_dry_looks_at_the_newest_tokens():
    fields = {"temperature": 0.0, "dry_multiplier": 9.0, "dry_allowed_length": 1, "dry_range": 3}
    sampler = sampler_of(0, (), (), (9, 8, 7, 1, 2, 1), **fields)
    assert likeliest(sampler, t2=2.0, t20=1.0) == [20]


def test_short_texts_come_behind_a_long_one():
    draw, fields = Draw(SIZE, CPU), {"temperature": 0.0, "presence_penalty": 2.0}
    rows, texts = rows_of([0.0] * 6 + [1.0, 0.5] + [0.0] * 32), ([6] * 2000, [6], [6])
    long, *short = [sampler_of(0, completion=text, **fields) for text in texts]
    for samplers in ([long], short):
        drawn = draw(samplers, rows.repeat(len(samplers), 1), None).token_ids
        assert drawn == [7] * len(samplers)


def test_each_row_has_a_temperature_of_its_own():
    cold, hot = {"temperature": 0.02}, {"temperature": 100.0}
    logits = [i / SIZE for i in range(SIZE)]  # the last is the likeliest, by little
    for fields in ({}, {"top_k": SIZE // 2}):  # by both ways to draw
        samplers = [sampler_of(i, (), (), **(hot, cold)[i % 2], **fields) for i in range(40)]
        drawn = Draw(SIZE, CPU)(samplers, rows_of(*[logits] * 40), None).token_ids
        assert len(set(drawn[::2])) > 5 and min(drawn[1::2]) > SIZE - 5


def test_what_is_computed_with_half_precise_logits_is_not_rounded_again():
    """12 / 1.1999 is more than 10, by less than a half can tell."""
    logits = torch.full((1, PADDED), -50.0, dtype=torch.float16)
    logits[0, 20], logits[0, 21] = 10.0, 12.0
    sampler = sampler_of(0, (), (), (21,), temperature=0.0, repetition_penalty=1.1999)
    plain = sampler_of(1, top_k=1)
    assert Draw(SIZE, CPU)([sampler], logits.clone(), None).token_ids == [21]
    drawn = Draw(SIZE, CPU)([plain, sampler], logits.repeat(2, 1), None)
    assert drawn.token_ids == [21, 21]


def test_nothing_is_kept_of_texts_that_are_penalized_no_more():
    draw, places = Draw(SIZE, CPU), set()
    for i in range(5):
        sampler = sampler_of(i, presence_penalty=1.0)
        draw([sampler], rows_of(logits_of(i)), None)
        places.add(len(draw._history._ids))
        gone = weakref.ref(sampler)
        draw([sampler_of(i, presence_penalty=1.0)], rows_of(logits_of(i)), None)
        del sampler
        assert gone() is None
    assert len(places) == 1
