"""Draws of whole batches, against a plain reference of the published definitions."""

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest
import torch

from engine.backends.draw import Draw
from engine.backends.rules import Among, Only, Without
from engine.backends.sampler import Sampler
from engine.messages import Sampling
from tests.scripted import job

SIZE = 40  # of the vocabulary
PADDED = 64
NUM_ROWS = 500
PROMPT = (1, 2, 3, 3, 7, 9)
COMPLETION = (5, 5, 2, 11, 30)
CPU = torch.device("cpu")

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
COMBINATIONS = [
    names for n in range(len(SETTINGS) + 1) for names in itertools.combinations(SETTINGS, n)
]


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


def sampler_of(seed, rules=(), completion=COMPLETION, **fields):
    one = job(f"job{seed}", 1000, prompt=PROMPT, sampling=Sampling(seed=seed, **fields))
    sampler = Sampler(one, (), [b"x"] * SIZE, (), rules)
    for token_id in completion:
        sampler.accept(token_id)
    return sampler


def rows_of(*logits):
    rows = torch.full((len(logits), PADDED), 50.0)  # what pads the vocabulary isn't drawn
    rows[:, :SIZE] = torch.tensor(logits)
    return rows


def p_value(counts, probs, total):
    """Of Pearson's chi-squared test; rare tokens are taken together."""
    rare = [i for i, p in probs.items() if p * total < 5]
    cells = [(counts[i], p * total) for i, p in probs.items() if i not in rare]
    if rare:
        cells.append((sum(counts[i] for i in rare), sum(probs[i] for i in rare) * total))
    if len(cells) == 1:
        return 1.0
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(*half).item()


@pytest.mark.parametrize("names", COMBINATIONS, ids="-".join)
def test_frequencies_are_those_of_the_definitions(names, request):
    fields = made(names)
    logits = logits_of(len(names))
    samplers = [sampler_of(seed, **fields) for seed in range(NUM_ROWS)]
    draw = Draw(SIZE, CPU)
    counts = Counter()
    num_steps = request.config.getoption("--draws") // NUM_ROWS
    for _ in range(num_steps):
        counts.update(draw(samplers, rows_of(logits).repeat(NUM_ROWS, 1), None).token_ids)
    probs = reference(logits, samplers[0].sampling)
    assert set(counts) <= set(probs)
    assert p_value(counts, probs, num_steps * NUM_ROWS) > 0.001


def test_a_row_is_drawn_alike_in_any_company():
    """Token by token, beside others that come and go, of other lengths and settings."""
    rng = random.Random(5)

    def fields():
        return made(rng.sample(sorted(SETTINGS), rng.randrange(len(SETTINGS)))) | rng.choice(
            [
                {},
                {"temperature": 0.0},
                {"top_k": 200},
                {"xtc_probability": 0.5},
                {"typical_p": 0.8},
                {"skew": 1.0},
            ]
        )

    own = made(SETTINGS)
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


def among(*token_ids):
    bits = np.zeros(PADDED, dtype=np.uint8)
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


def test_logprobs_are_of_the_models_own_logits():
    fields = made(SETTINGS)
    one = job("a", 9, prompt=PROMPT, sampling=Sampling(seed=1, **fields), num_logprobs=3)
    samplers = [sampler_of(2, **fields), Sampler(one, (), [b"x"] * SIZE, ())]
    logits = [logits_of(1), logits_of(2)]
    token_ids, [none, told] = Draw(SIZE, CPU)(samplers, rows_of(*logits), None)
    expected = torch.tensor(logits[1], dtype=torch.float64).log_softmax(-1)
    assert none is None and told.token_id == token_ids[1]
    assert told.logprob == pytest.approx(expected[token_ids[1]].item(), abs=1e-5)
    best = expected.topk(3)
    assert [i for i, _ in told.top] == best.indices.tolist()
    assert [p for _, p in told.top] == pytest.approx(best.values.tolist(), abs=1e-5)
