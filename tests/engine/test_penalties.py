"""The penalties against their definitions, token by token."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from switchyard.engine.backends.sampling import penalties
from switchyard.engine.backends.sampling.draw import Draw
from switchyard.engine.backends.sampling.sampler import Sampler
from switchyard.engine.sampling import Sampling
from tests.scripted import job

SOME = settings(max_examples=150)
SIZE = 12  # of the vocabulary
logits_of = st.lists(st.floats(-5, 5, width=32), min_size=SIZE, max_size=SIZE)
texts = st.lists(st.integers(0, SIZE - 1), max_size=30)
few = st.lists(st.integers(0, 3), max_size=40)  # repeats itself


def rows_of(text):
    """Token ids and ages, as penalties get them, of another text and of `text`."""
    other = [*text, 0, 1]
    token_ids = torch.tensor([other, [*text, 3, 3]])  # what is beyond its end doesn't count
    lengths = torch.tensor([[len(other)], [len(text)]])
    return token_ids, lengths - 1 - torch.arange(len(other))


def column(value):
    return torch.tensor([[1.5], [value]])


def near(x, y):
    return all(math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4) for a, b in zip(x, y, strict=True))


@SOME
@given(logits_of, texts, st.floats(0.2, 4), st.integers(-1, 12), st.integers(0, 12))
@example([1.0] * SIZE, [5, 6, 7], 2.0, 2, 0)  # 5 is just beyond the range, and nothing fades
@example([1.0] * SIZE, [5, 6, 5], 0.5, 1, 4)  # in full, and faded
def test_repetition(values, text, penalty, full, decay):
    expected = list(values)
    for token in set(text):
        age = text[::-1].index(token)  # of its newest place
        if full < 0 or age < full:
            strength = 1.0
        else:
            strength = 1 - (age - full) / decay if decay and age < full + decay else 0.0
        factor = 1 + (penalty - 1) * strength
        value = values[token]
        expected[token] = value / factor if value > 0 else value * factor
    logits = torch.tensor([values[::-1], values])
    columns = [column(value) for value in (penalty, full, decay)]
    penalties.penalize_repetition(logits, *rows_of(text), *columns)
    assert near(logits[1].tolist(), expected)


@SOME
@given(logits_of, texts, st.integers(0, 30), st.floats(-2, 2), st.floats(-2, 2))
def test_frequency_and_presence_in_the_completion(values, text, num_new, frequency, presence):
    completion = text[max(len(text) - num_new, 0) :]
    expected = [
        value - frequency * completion.count(token) - presence * (token in completion)
        for token, value in enumerate(values)
    ]
    logits = torch.tensor([values[::-1], values])
    token_ids, ages = rows_of(text)
    is_counted = (ages >= 0) & (ages < num_new)
    penalties.penalize_frequency(logits, token_ids, is_counted, column(frequency), column(presence))
    assert near(logits[1].tolist(), expected)


def continued(values, text, *args):
    logits = torch.tensor([values])
    penalties.penalize_continuations(logits, np.array(text, dtype=np.int64), *args)
    return logits[0].tolist()


def repeated(text, token, breakers):
    """The longest end of `text` that stood before an earlier `token`, without a breaker in it."""
    longest = 0
    for place in range(1, len(text)):
        if text[place] != token:
            continue
        length = 0
        while (
            length < place
            and text[place - 1 - length] == text[-1 - length]
            and text[-1 - length] not in breakers
        ):
            length += 1
        longest = max(longest, length)
    return longest


@SOME
@given(
    logits_of,
    few,
    st.sets(st.integers(0, 3), max_size=2),
    st.floats(0.1, 3),
    st.floats(1, 3),
    st.integers(1, 5),
)
def test_dry(values, text, breakers, multiplier, base, allowed):
    is_breaker = np.zeros(SIZE, dtype=np.bool_)
    is_breaker[list(breakers)] = True
    expected = list(values)
    for token in range(SIZE):
        length = repeated(text, token, breakers)
        if length >= allowed and token not in breakers:
            expected[token] -= multiplier * base ** (length - allowed)
    args = (is_breaker, multiplier, base, allowed)
    assert near(continued(values, text, *args), expected)


@pytest.mark.parametrize(("length", "base"), [(500, 8.0), (100, 1.1)])
def test_dry_of_a_long_repetition_grows_no_further_and_is_finite(length, base):
    is_breaker = np.zeros(SIZE, dtype=np.bool_)
    [*_, last] = continued([0.0] * SIZE, [SIZE - 1] * length, is_breaker, 5.0, base, 2)
    most = min(5 * base ** (penalties.MAX_MATCH - 2), penalties.MAX_DRY)
    assert math.isclose(last, -most, rel_tol=1e-5)


@SOME
@given(logits_of, logits_of, st.floats(-1, 4))
def test_guidance(wanted, unwanted, scale):
    rows = torch.tensor([wanted, unwanted]), torch.tensor([unwanted, wanted])
    row = penalties.guide(*rows, torch.tensor([[scale], [0.5]]))
    a, b = (
        torch.tensor(v, dtype=torch.float64).log_softmax(-1).tolist() for v in (wanted, unwanted)
    )
    expected = [y + scale * (x - y) for x, y in zip(a, b, strict=True)]
    assert near(row[0].tolist(), expected)


def test_each_pair_is_guided_by_its_own_scale():
    guided = [Sampling(temperature=0.0, cfg_scale=scale) for scale in (1.0, 3.0)]
    pairs = [job("a", negative_prompt=(1,), sampling=one) for one in guided]
    samplers = [Sampler(pair, (), [], ()) for pair in pairs]
    wanted, unwanted = torch.tensor([[1.0, 0.9]] * 2), torch.tensor([[1.0, 0.0]] * 2)
    drawn = Draw(2, torch.device("cpu"))(samplers, wanted, unwanted)
    assert drawn.token_ids == [0, 1]
