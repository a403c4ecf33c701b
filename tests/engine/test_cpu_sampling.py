"""The sampler that stands for exllamav2's on the CPU."""

import math

import numpy as np
import pytest
import torch

from switchyard.engine.backends.exl2.cpu import extension
from tests.engine.references import random_logits

NONE = torch.empty((1, 1), device="meta")
SWITCHED_OFF = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 0.0,
    "top_a": 0.0,
    "min_p": 0.0,
    "tfs": 0.0,
    "typical": 0.0,
    "random": 0.5,
    "logit_filter": NONE,
    "mirostat": False,
    "mirostat_mu": [],
    "mirostat_tau": 1.5,
    "mirostat_eta": 0.1,
    "post_temperature": 1.0,
    "xtc_mask": NONE,
}


def sampled(rows, num_listed=0, **arguments):
    """What the function writes for rows of logits (tokens, their probabilities, the listed tokens
    and theirs) and returns.
    """
    rows = torch.as_tensor(rows, dtype=torch.float32)
    rows = rows.view(-1, 1, rows.shape[-1])
    shape, listed = (len(rows), 1), (len(rows), 1, num_listed)
    outputs = {
        "output_tokens": torch.empty(shape, dtype=torch.long),
        "output_probs": torch.empty(shape),
        "output_ktokens": torch.empty(listed, dtype=torch.long) if num_listed else NONE,
        "output_kprobs": torch.empty(listed) if num_listed else NONE,
    }
    mus = extension.sample_basic(rows, **outputs, **(SWITCHED_OFF | arguments))
    return *(one.flatten().tolist() for one in outputs.values() if one is not NONE), mus


def sample(logits, **arguments):
    """Token and probability of one row of logits."""
    [token], [prob], _ = sampled(logits, **arguments)
    return token, prob


def distribution(logits, **arguments):
    """{token: probability} of all that can be drawn."""
    *_, tokens, probs, _ = sampled(logits, len(logits), **arguments)
    return {token: prob for token, prob in zip(tokens, probs, strict=True) if prob > 0}


def softmax(logits):
    weights = np.exp(np.asarray(logits, dtype=np.float64) - np.max(logits))
    return weights / weights.sum()


def check(logits, expected, **arguments):
    """`expected`: the probability of each token; all others can't be drawn."""
    drawn = distribution(logits, **arguments)
    assert drawn == {i: pytest.approx(p, rel=1e-4) for i, p in enumerate(expected) if p}


@pytest.mark.parametrize(
    ("greedy", "last"),
    [({"top_k": 1}, 3.0), ({"temperature": 0.0}, 3.0), ({"post_temperature": 0.0}, 2.9)],
)
def test_greedy_takes_the_first_of_the_largest_logits(greedy, last):
    assert sample([0.0, 3.0, -1.0, last], random=0.9, **greedy) == (1, 1.0)


@pytest.mark.parametrize("size", [3, 256, 257, 1000])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_a_draw_takes_the_token_at_its_point_of_the_cumulative_probability(size, temperature):
    logits = random_logits(size)
    probs = softmax(logits / temperature)
    cumulative = probs.cumsum()
    for point in np.linspace(0, 0.9999, 60):
        token, prob = sample(logits, temperature=temperature, random=float(point))
        assert prob == pytest.approx(probs[token], rel=1e-4)
        low = cumulative[token - 1] if token else 0.0
        assert low - 1e-5 <= point * 0.9998 <= cumulative[token] + 1e-5


def test_a_draw_just_before_the_border_of_two_blocks_takes_the_last_of_the_first():
    border = 256
    for seed in range(20):
        logits = random_logits(600, seed)
        weights = np.exp(logits - logits.max())
        sums = np.add.reduceat(weights, np.arange(0, 600, border)).astype(np.float64)
        point = sums[0] / sums.sum() * (1 - 1e-12) / 0.9998
        assert sample(logits, random=float(point))[0] == border - 1


@pytest.mark.parametrize("random", [0.0, 1e-300, math.nextafter(1, 0)])
def test_a_banned_token_is_never_drawn(random):
    logits = np.full(600, -np.inf, dtype=np.float32)
    logits[300] = -5.0
    assert sample(logits, random=random) == (300, 1.0)


def test_smoothing_squares_the_distance_to_the_largest_logit():
    logits = np.array([1.0, 0.5, -1e30, -2.0])
    check(logits, softmax([0.0, -0.25 * 0.7, -np.inf, -9 * 0.7]), smoothing_factor=0.7)


def test_only_what_the_filter_allows_is_drawn():
    allowed = torch.zeros((1, 50), dtype=torch.bool)
    allowed[0, [7, 20, 41]] = True
    logits = random_logits(50)
    expected = softmax(np.where(allowed[0].numpy(), logits, -np.inf))
    check(logits, expected, logit_filter=allowed)


NOTHING = {"logit_filter": torch.zeros((1, 2), dtype=torch.bool)}


@pytest.mark.parametrize("more", [{}, {"top_k": 1}])
@pytest.mark.parametrize(
    ("bad", "filtered"),
    [
        *(([value, 1.0], {}) for value in (math.nan, math.inf)),
        ([-math.inf, -math.inf], {}),
        ([1.0, 2.0], NOTHING),
    ],
    ids=["nan", "inf", "-inf", "filter"],
)
def test_logits_that_nothing_can_be_drawn_from_are_an_error(bad, filtered, more):
    with pytest.raises(RuntimeError, match="no token can be drawn"):
        sample(bad, **filtered, **more)


@pytest.mark.parametrize("wrong", [{"temperature": None}, {"top_k": 1.5}], ids=str)
def test_a_parameter_that_is_not_a_number_is_an_error(wrong):
    with pytest.raises(TypeError):
        sample([1.0, 2.0, 3.0], **wrong)


def kept_ids(probs, **arguments):
    kept = sorted(distribution(np.log(probs), **arguments))
    left = np.where(np.isin(np.arange(len(probs)), kept), probs, 0.0)
    check(np.log(probs), left / left.sum(), **arguments)
    return kept


def test_top_k_keeps_the_likeliest():
    probs = softmax(random_logits(700))
    assert kept_ids(probs, top_k=9) == sorted(np.argsort(-probs)[:9].tolist())
    assert kept_ids(probs[:5] / probs[:5].sum(), top_k=9) == [0, 1, 2, 3, 4]


SPREAD = [0.1, 0.5, 0.2, 0.16, 0.04]


@pytest.mark.parametrize(
    ("arguments", "probs", "kept"),
    [
        # What crosses the limit is left out, and smaller ones are kept.
        ({"top_p": 0.8}, [0.45, 0.40, 0.10, 0.05], [0, 2, 3]),
        ({"top_p": 0.5}, [0.9, 0.06, 0.04], [0]),
        ({"top_p": 0.3}, [0.4, 0.6], [1]),
        ({"min_p": 0.35}, SPREAD, [1, 2]),
        ({"top_a": 0.6}, SPREAD, [1, 2, 3]),  # of the square of the likeliest
        ({"top_k": 3, "min_p": 0.1}, [0.3, 0.3, 0.25, 0.15], [0, 1, 2]),  # all are over it
        # Second differences .25, 0, 0: all of it at once. Then .03, .05, .07: .2, .53, 1 of it.
        ({"tfs": 0.9}, [0.05, 0.5, 0.2, 0.15, 0.1], [1]),
        ({"tfs": 0.5}, [0.02, 0.48, 0.3, 0.15, 0.05], [1, 2]),
    ],
    ids=str,
)
def test_what_each_filter_keeps(arguments, probs, kept):
    assert kept_ids(np.array(probs), **arguments) == kept


def test_typical_sampling_prefers_expected_surprise_to_likelihood():
    probs = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
    surprise = probs + np.log(probs)
    order = np.argsort(np.abs(surprise - (probs * surprise).sum()))
    assert order[0] != 0
    kept = order[: int((probs[order].cumsum() < 0.6).sum())]
    assert kept_ids(probs, typical=0.6) == sorted(kept.tolist())


def test_mirostat_drops_surprising_tokens_and_adjusts_its_mu():
    arguments = {"mirostat": True, "mirostat_mu": [2.0], "random": 0.99}
    [token], [prob], mus = sampled(np.log([0.2, 0.5, 0.3]), **arguments)
    assert (token, prob) == (2, pytest.approx(0.375))  # 0.2 is below 2 ** -2
    assert mus == [pytest.approx(2.0 + 0.1 * (1.5 + math.log2(0.375)))]


def test_temperature_may_come_after_the_filters():
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    expected = probs[:3] ** 0.5 / (probs[:3] ** 0.5).sum()
    check(np.log(probs), expected, top_k=3, post_temperature=2.0)


def test_dynamic_temperature_follows_the_entropy():
    probs = np.array([0.7, 0.2, 0.1])
    heat = 0.5 + 1.5 * (-(probs * np.log(probs)).sum() / math.log(3)) ** 1.3
    expected = probs ** (1 / heat) / (probs ** (1 / heat)).sum()
    check(np.log(probs), expected, min_temp=0.5, max_temp=2.0, temp_exponent=1.3)


def test_xtc_makes_all_likely_tokens_but_the_last_less_likely():
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    mask = torch.ones(4, dtype=torch.bool)
    arguments = {"top_k": 3, "xtc_probability": 0.5, "xtc_threshold": 0.1, "xtc_mask": mask}
    first, second, third = probs[:3] / probs[:3].sum()
    rest = 1 + 0.5 * (first + second) / (1 - first - second)
    check(np.log(probs), [first * 0.5, second * 0.5, third * rest], **arguments)
    scaled = [0.15 * (1 + 0.5 * 0.8 / 0.2), 0.25, 0.05 * (1 + 0.5 * 0.8 / 0.2), 0.15]
    check(np.log(probs[[2, 0, 3, 1]]), scaled, **(arguments | {"top_k": 0}))
    mask[:2] = False  # too few left to exclude one
    unchanged = distribution(np.log(probs), **arguments)
    assert unchanged[0] == pytest.approx(first, rel=1e-4)


def test_xtc_leaves_a_single_likely_token_alone():
    arguments = {"xtc_probability": 0.5, "xtc_mask": torch.ones(3, dtype=torch.bool)}
    check(np.log([0.05, 0.9, 0.05]), [0.05, 0.9, 0.05], **arguments)


def test_skew_moves_the_draw_along_the_likeliest_first():
    logits = np.log([0.1, 0.2, 0.7])
    assert sample(logits, random=0.8)[0] == 2
    assert sample(logits, random=0.8, skew=-1.0)[0] == 2
    assert sample(logits, random=0.8, skew=2.0)[0] == 0


def test_the_likeliest_are_listed_and_filled_up_with_other_ids_at_probability_0():
    *_, tokens, probs, _ = sampled([0.0, 3.0, 1.0, 2.0, -1.0], 4, top_k=2)
    assert tokens == [1, 3, 0, 2]
    assert probs == [*map(pytest.approx, softmax([3.0, 2.0])), 0.0, 0.0]


def test_each_row_of_a_batch_is_drawn_by_itself():
    logits = torch.full((3, 40), -20.0)
    logits[0, 5] = logits[1, 39] = logits[2, 0] = 20.0
    logits[2, 8] = 40.0
    allowed = torch.ones((3, 40), dtype=torch.bool)
    allowed[2, 8] = False
    assert sampled(logits, logit_filter=allowed)[0] == [5, 39, 0]
