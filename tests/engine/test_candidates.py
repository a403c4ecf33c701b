"""Draws from the likeliest alone, against a plain reference over the whole vocabulary."""

import itertools
import math
import random

import pytest
import torch

from switchyard.engine.backends.sampling import candidates
from switchyard.engine.backends.sampling.draw import NONE_LEFT, NOT_NUMBERS, Draw
from switchyard.engine.backends.sampling.sampler import MAX_FEW, Sampler
from switchyard.engine.sampling import Sampling
from tests.scripted import job

SIZE = 1000
CPU = torch.device("cpu")


def sampler_of(seed, **fields):
    return Sampler(job("a", 9, sampling=Sampling(seed=seed, **fields)), (), [b"x"] * SIZE, ())


def reference(logits, s, point):
    """The token in whose part of the probability `point` lies, in the order of ids."""
    values = [value / s.temperature for value in logits]
    ranked = sorted(values, reverse=True)
    kept = [i for i, value in enumerate(values) if value >= ranked[s.top_k - 1]]
    kept.sort(key=lambda i: -values[i])
    weights = [math.exp(values[i] - ranked[0]) for i in kept]
    sums = [total / sum(weights) for total in itertools.accumulate(weights)]
    border = values[kept[sum(total < s.top_p for total in sums[:-1])]]
    allowed = [i for i in kept if values[i] >= max(border, ranked[0] + math.log(s.min_p or 1e-300))]
    allowed.sort()
    parts = list(itertools.accumulate(math.exp(values[i] - ranked[0]) for i in allowed))
    return next(i for i, part in zip(allowed, parts, strict=True) if part > point * parts[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_each_token_is_that_of_the_definitions(dtype):
    """Many of the logits are equal."""
    rng = random.Random(0)
    for step in range(100):
        rows = [[round(rng.gauss(0, 3), 1) for _ in range(SIZE)] for _ in range(5)]
        logits = torch.tensor(rows).to(dtype)
        fields = [
            {
                "temperature": rng.choice([0.3, 1.0, 2.0]),
                "top_k": rng.choice([1, 2, 40, MAX_FEW]),
                "top_p": rng.choice([0.0, 0.3, 0.9, 1.0]),
                "min_p": rng.choice([0.0, 0.1, 1.0]),
            }
            for _ in rows
        ]
        samplers = [sampler_of(step, **one) for one in fields]
        token_ids, tops = candidates.draw(samplers, logits)
        points = [sampler_of(step).point()] * len(rows)
        expected = [
            reference(row, sampler.sampling, point)
            for row, sampler, point in zip(logits.tolist(), samplers, points, strict=True)
        ]
        assert token_ids.tolist() == expected
        assert tops.tolist() == logits.amax(-1).tolist()


class At(Sampler):
    """A sampler whose random number is this."""

    def __init__(self, point, **fields):
        super().__init__(job("a", sampling=Sampling(**fields)), (), (), ())
        self.point = lambda: point


def test_what_is_left_out_is_drawn_at_no_end():
    logits = torch.tensor([[0.0, 3.0, 3.0, 0.0]])
    samplers = [At(point, top_k=2) for point in (0.0, 1 - 2**-53)]
    assert candidates.draw(samplers, logits.repeat(2, 1))[0].tolist() == [1, 2]


def test_what_reaches_top_p_exactly_is_enough():
    logits = torch.tensor([[1.0, 0.0, -1.0]])
    first = logits.double().softmax(-1)[0, 0].item()
    drawn = candidates.draw([At(0.99, top_k=3, top_p=first)], logits)[0]
    assert drawn.tolist() == [0]


def test_a_small_vocabulary_has_fewer_tokens_than_top_k():
    logits = torch.tensor([[0.0, 9.0, 0.0, 0.0]])
    assert candidates.draw([At(0.5, top_k=50)], logits)[0].tolist() == [1]


def test_logits_that_are_no_numbers_are_told():
    rows = torch.zeros((4, SIZE), dtype=torch.float16)
    rows[0] = -math.inf
    rows[1, 7] = math.nan
    rows[2, 7] = math.inf
    rows[3, 7] = 60.0
    samplers = [sampler_of(seed, top_k=5, top_p=0.5) for seed in range(4)]
    drawn = Draw(SIZE, CPU)(samplers, rows, None)
    assert drawn.token_ids == [NONE_LEFT, NOT_NUMBERS, NOT_NUMBERS, 7]
