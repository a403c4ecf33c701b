"""Draws of the real generator."""

import math

import pytest

from switchyard.engine.messages import Chunk
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import draws, pieces
from tests.engine.forced import run
from tests.scripted import job

PROBABILITIES = {300: 0.45, 301: 0.40, 302: 0.10, 303: 0.05}


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({}, {300, 301, 302, 303}),
        ({"top_p": 0.8}, {300, 301}),
        ({"top_p": 0.86}, {300, 301, 302}),
        ({"top_p": 0.0}, {300}),
        ({"top_k": 3}, {300, 301, 302}),
        ({"top_k": 1}, {300}),
        ({"min_p": 0.2}, {300, 301, 302}),
        ({"min_p": 0.5}, {300, 301}),
        ({"temperature": 0.0}, {300}),
    ],
    ids=str,
)
@pytest.mark.parameter("temperature")
@pytest.mark.parameter("top_p")
@pytest.mark.parameter("top_k")
@pytest.mark.parameter("min_p")
def test_the_filters_keep_what_their_names_say(forced, sampling, kept):
    backend = forced(lambda t: {i: math.log(p) for i, p in PROBABILITIES.items()})
    assert set(draws(backend, sampling)) == kept


def test_draws_follow_the_probabilities(forced):
    backend = forced(lambda t: {i: math.log(p) for i, p in PROBABILITIES.items()})
    counts = draws(backend, {"top_p": 0.8}, times=400)
    assert counts[300] / 400 == pytest.approx(0.45 / 0.85, abs=0.1)


@pytest.mark.parametrize(
    ("sampling", "first", "then"),
    [
        # 300 is in the prompt: only the repetition penalty minds, before any token is drawn.
        ({"repetition_penalty": 1.5}, 301, 300),
        ({"frequency_penalty": 0.7}, 300, 301),
        ({"presence_penalty": 0.7}, 300, 301),
        ({"frequency_penalty": 0.4}, 300, 300),
        ({}, 300, 300),
    ],
    ids=str,
)
@pytest.mark.parameter("repetition_penalty")
@pytest.mark.parameter("frequency_penalty")
@pytest.mark.parameter("presence_penalty")
def test_penalties_count_what_their_definitions_say(forced, sampling, first, then):
    backend = forced(lambda t: {300: 4.0, 301: 3.5})
    greedy = Sampling(temperature=0.0, **sampling)
    events = run(backend, job("x", 2, prompt=(1, 300), sampling=greedy))["x"]
    ids = [token_id for e in events if isinstance(e, Chunk) for token_id in e.token_ids]
    assert ids == [first, then]


def test_xtc_spares_the_end_of_a_line_and_no_token_with_more(backend, forced):
    line, lines = pieces(backend, "\n", "\n\n")
    sampling = {"xtc_probability": 1.0, "xtc_threshold": 0.01}
    assert set(draws(forced(lambda t: {line: 9.0, 5: 6.0}), sampling, 9)) >= {line}
    assert set(draws(forced(lambda t: {lines: 9.0, 5: 6.0}), sampling, 9)) == {5}
