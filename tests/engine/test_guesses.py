"""How many tokens are guessed, and which, without a model."""

import random

import pytest

from switchyard.engine.backends.exl2.guessing.guesses import Guesses
from switchyard.engine.backends.exl2.guessing.ngrams import Ngrams

STEPS = 4000
PLAIN = 0.010  # seconds of a step without guesses


def speed(rate, more, num_jobs, has_guess=1.0, most=4):
    """Tokens a second of steps as `Guesses` chooses them, relative to those without guesses.

    `rate`: how often a guess is right; `more`: seconds that a guessed token of all jobs costs;
    `has_guess`: how often a job has one.
    """
    rng, guesses = random.Random(f"{rate} {more}"), Guesses(most)
    tokens = seconds = 0.0
    for _ in range(STEPS):
        rates = [rate if rng.random() < has_guess else 0.0 for _ in range(num_jobs)]
        number = guesses.number(rates)
        taken = (PLAIN + number * more) * rng.uniform(0.9, 1.1)
        guesses.note(num_jobs, number, taken)
        seconds += taken
        for one in rates:
            tokens += 1
            for _ in range(number):
                if rng.random() >= one:
                    break
                tokens += 1
    return tokens / seconds * PLAIN / num_jobs


@pytest.mark.parametrize("num_jobs", [1, 8])
@pytest.mark.parametrize("more", [0.0005, 0.003, 0.02])
@pytest.mark.parametrize("rate", [0.05, 0.3, 0.6, 0.95])
def test_guesses_cost_little_where_they_do_not_pay(rate, more, num_jobs):
    assert speed(rate, more, num_jobs) > 0.97
    assert speed(rate, more, num_jobs, has_guess=0.3) > 0.97


def test_guesses_are_made_where_they_pay():
    assert speed(0.9, 0.001, 1) > 2.5
    assert speed(0.9, 0.001, 8) > 2.5
    assert speed(0.5, 0.001, 8) > 1.4


def test_a_first_step_that_was_slow_is_not_believed():
    guesses = Guesses(4)
    guesses.note(1, 0, PLAIN)
    assert guesses.number([0.9]) == 4
    guesses.note(1, 4, 10.0)  # something was compiled
    numbers = []
    for _ in range(STEPS):
        numbers.append(guesses.number([0.9]))
        guesses.note(1, numbers[-1], PLAIN + numbers[-1] * 0.0005)
    assert sum(map(bool, numbers)) > 0.9 * STEPS


def test_the_text_goes_on_as_it_did_before():
    text = Ngrams()
    text.add([1, 2, 3, 4, 5, 6, 7], is_counted=False)
    assert (text.guess(4), text.rate) == ([], 0.0)
    text.add([1, 2, 3])
    assert text.guess(4) == [4, 5, 6, 7] and text.guess(9) == [4, 5, 6, 7, 1, 2, 3, 4, 5]
    first = text.rate
    text.add([4, 5])
    assert first < text.rate < 1 and text.guess(2) == [6, 7]
    before = text.rate
    text.add([9])
    assert text.rate == 0.0
    text.add([1, 2, 3])
    assert text.rate < before  # the last expected token was not the next
    assert text.guess(1) == [4]


def test_the_last_occurrence_counts():
    text = Ngrams()
    text.add([1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 1, 2, 3])
    assert text.guess(1) == [5]


def test_a_text_that_repeats_a_token_is_guessed_on():
    text = Ngrams()
    text.add([7] * 5)
    assert text.guess(6) == [7] * 6
