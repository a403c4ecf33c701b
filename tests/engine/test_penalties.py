"""The penalties against their definitions, token by token."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends import penalties

SOME = settings(max_examples=150, deadline=None)
SIZE = 12  # of the vocabulary
logits_of = st.lists(st.floats(-5, 5, width=32), min_size=SIZE, max_size=SIZE)
texts = st.lists(st.integers(0, SIZE - 1), max_size=30)
few = st.lists(st.integers(0, 3), max_size=40)  # repeats itself


def changed(values, text, change, *args):
    logits = torch.tensor([values])
    change(logits, torch.tensor([text], dtype=torch.long), *args)
    return logits[0].tolist()


def near(left, right):
    return all(
        math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-4) for a, b in zip(left, right, strict=True)
    )


@SOME
@given(logits_of, texts, st.floats(0.2, 4), st.integers(-1, 12), st.integers(0, 12))
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
    assert near(
        changed(values, text, penalties.penalize_repetition, penalty, full, decay), expected
    )


@SOME
@given(logits_of, texts, st.floats(-2, 2), st.floats(-2, 2))
def test_frequency_and_presence(values, text, frequency, presence):
    expected = [
        value - frequency * text.count(token) - presence * (token in text)
        for token, value in enumerate(values)
    ]
    assert near(changed(values, text, penalties.penalize_frequency, frequency, presence), expected)


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
    is_breaker = torch.zeros(SIZE, dtype=torch.bool)
    is_breaker[list(breakers)] = True
    expected = list(values)
    for token in range(SIZE):
        length = repeated(text, token, breakers)
        if length >= allowed and token not in breakers:
            expected[token] -= multiplier * base ** (length - allowed)
    args = (is_breaker, multiplier, base, allowed)
    assert near(changed(values, text, penalties.penalize_continuations, *args), expected)


def test_dry_of_a_very_long_repetition_is_finite():
    is_breaker = torch.zeros(SIZE, dtype=torch.bool)
    [*_, last] = changed(
        [0.0] * SIZE, [SIZE - 1] * 500, penalties.penalize_continuations, is_breaker, 5.0, 8.0, 2
    )
    assert -1e31 < last < -1e29


@SOME
@given(logits_of, logits_of, st.floats(-1, 4))
def test_guidance(wanted, unwanted, scale):
    row = penalties.guide(torch.tensor([wanted, unwanted]), scale)
    a, b = (
        torch.tensor(v, dtype=torch.float64).log_softmax(-1).tolist() for v in (wanted, unwanted)
    )
    expected = [y + scale * (x - y) for x, y in zip(a, b, strict=True)]
    assert near(row[0].tolist(), expected)
