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


def sample(logits, **arguments):
    """Token and probability of one row of logits."""
    tokens, probs = torch.empty((1, 1), dtype=torch.long), torch.empty((1, 1))
    extension.sample_basic(
        torch.as_tensor(logits, dtype=torch.float32).view(1, 1, -1),
        output_tokens=tokens,
        output_probs=probs,
        output_ktokens=NONE,
        output_kprobs=NONE,
        **(SWITCHED_OFF | arguments),
    )
    return tokens.item(), probs.item()


def distribution(logits, **arguments):
    """{token: probability} of all that can be drawn."""
    logits = torch.as_tensor(logits, dtype=torch.float32).view(1, 1, -1)
    size = logits.shape[-1]
    tokens, probs = torch.empty((1, 1, size), dtype=torch.long), torch.empty((1, 1, size))
    extension.sample_basic(
        logits,
        output_tokens=torch.empty((1, 1), dtype=torch.long),
        output_probs=torch.empty((1, 1)),
        output_ktokens=tokens,
        output_kprobs=probs,
        **(SWITCHED_OFF | arguments),
    )
    pairs = zip(tokens.flatten().tolist(), probs.flatten().tolist(), strict=True)
    return {token: prob for token, prob in pairs if prob > 0}


def softmax(logits):
    weights = np.exp(np.asarray(logits, dtype=np.float64) - np.max(logits))
    return weights / weights.sum()


@pytest.mark.parametrize("arguments", [{"top_k": 1}, {"temperature": 0.0}])
def test_greedy_takes_the_first_of_the_largest_logits(arguments):
    assert sample([0.0, 3.0, -1.0, 3.0], random=0.9, **arguments) == (1, 1.0)


def test_a_temperature_of_0_that_comes_last_is_greedy():
    assert sample([0.0, 3.0, 2.9], post_temperature=0.0, random=0.9) == (1, 1.0)


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
    expected = softmax([0.0, -0.25 * 0.7, -np.inf, -9 * 0.7])
    drawn = distribution(logits, smoothing_factor=0.7)
    assert drawn == {i: pytest.approx(expected[i], rel=1e-4) for i in (0, 1, 3)}


def test_only_what_the_filter_allows_is_drawn():
    allowed = torch.zeros((1, 50), dtype=torch.bool)
    allowed[0, [7, 20, 41]] = True
    logits = random_logits(50)
    drawn = distribution(logits, logit_filter=allowed)
    expected = softmax(logits[[7, 20, 41]])
    assert drawn == {t: pytest.approx(p) for t, p in zip([7, 20, 41], expected, strict=True)}


@pytest.mark.parametrize("greedy", [{}, {"top_k": 1}])
@pytest.mark.parametrize("bad", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
def test_logits_that_nothing_can_be_drawn_from_are_an_error(bad, greedy):
    with pytest.raises(RuntimeError, match="no token can be drawn"):
        sample(bad, **greedy)


def test_a_filter_that_allows_nothing_is_an_error():
    with pytest.raises(RuntimeError, match="no token can be drawn"):
        sample([1.0, 2.0], logit_filter=torch.zeros((1, 2), dtype=torch.bool))


def test_a_parameter_that_is_not_a_number_is_an_error():
    with pytest.raises(TypeError):
        sample([1.0, 2.0], temperature=None)
    with pytest.raises(TypeError):
        sample([1.0, 2.0, 3.0], top_k=1.5)


def kept_ids(probs, **arguments):
    drawn = distribution(np.log(probs), **arguments)
    kept = sorted(drawn)
    total = sum(probs[token] for token in kept)
    assert drawn == {token: pytest.approx(probs[token] / total, rel=1e-4) for token in kept}
    return kept


def test_top_k_keeps_the_likeliest():
    probs = softmax(random_logits(700))
    assert kept_ids(probs, top_k=9) == sorted(np.argsort(-probs)[:9].tolist())
    assert kept_ids(probs[:5] / probs[:5].sum(), top_k=9) == [0, 1, 2, 3, 4]


def test_top_p_leaves_out_the_token_that_crosses_the_limit_and_keeps_smaller_ones():
    assert kept_ids(np.array([0.45, 0.40, 0.10, 0.05]), top_p=0.8) == [0, 2, 3]
    assert kept_ids(np.array([0.9, 0.06, 0.04]), top_p=0.5) == [0]
    assert kept_ids(np.array([0.4, 0.6]), top_p=0.3) == [1]


def test_min_p_keeps_what_is_likely_enough_compared_to_the_likeliest():
    assert kept_ids(np.array([0.1, 0.5, 0.2, 0.16, 0.04]), min_p=0.35) == [1, 2]


def test_top_a_keeps_what_is_likely_enough_compared_to_the_square_of_the_likeliest():
    assert kept_ids(np.array([0.1, 0.5, 0.2, 0.16, 0.04]), top_a=0.6) == [1, 2, 3]


def test_all_candidates_over_a_threshold_means_no_other():
    assert kept_ids(np.array([0.3, 0.3, 0.25, 0.15]), top_k=3, min_p=0.1) == [0, 1, 2]


def test_tail_free_sampling_cuts_where_the_curve_of_probabilities_flattens():
    # Second differences .25, .05, .01 of .31 in all: .81, .97, 1 of it, cumulatively.
    probs = np.array([0.05, 0.5, 0.2, 0.15, 0.1])
    curve = [abs(0.5 - 0.4 + 0.15), abs(0.2 - 0.3 + 0.1), abs(0.15 - 0.2 + 0.05)]
    assert curve[0] / sum(curve) > 0.9
    assert kept_ids(probs, tfs=0.9) == [1]
    probs = np.array([0.02, 0.48, 0.3, 0.15, 0.05])
    curve = [abs(0.48 - 0.6 + 0.15), abs(0.3 - 0.3 + 0.05), abs(0.15 - 0.1 + 0.02)]
    assert curve[0] / sum(curve) < 0.5 < sum(curve[:2]) / sum(curve)
    assert kept_ids(probs, tfs=0.5) == [1, 2]


def test_typical_sampling_prefers_expected_surprise_to_likelihood():
    probs = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
    surprise = probs + np.log(probs)
    order = np.argsort(np.abs(surprise - (probs * surprise).sum()))
    assert order[0] != 0
    kept = order[: int((probs[order].cumsum() < 0.6).sum())]
    assert kept_ids(probs, typical=0.6) == sorted(kept.tolist())


def test_mirostat_drops_surprising_tokens_and_adjusts_its_mu():
    tokens, probs = torch.empty((1, 1), dtype=torch.long), torch.empty((1, 1))
    logits = torch.tensor(np.log([0.2, 0.5, 0.3]), dtype=torch.float32).view(1, 1, -1)
    arguments = SWITCHED_OFF | {"mirostat": True, "mirostat_mu": [2.0], "random": 0.99}
    outputs = {"output_tokens": tokens, "output_probs": probs}
    mus = extension.sample_basic(
        logits, output_ktokens=NONE, output_kprobs=NONE, **outputs, **arguments
    )
    assert (tokens.item(), probs.item()) == (2, pytest.approx(0.375))  # 0.2 is below 2 ** -2
    assert mus == [pytest.approx(2.0 + 0.1 * (1.5 + math.log2(0.375)))]


def test_temperature_may_come_after_the_filters():
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    drawn = distribution(np.log(probs), top_k=3, post_temperature=2.0)
    expected = probs[:3] ** 0.5 / (probs[:3] ** 0.5).sum()
    assert drawn == {i: pytest.approx(expected[i], rel=1e-4) for i in range(3)}


def test_dynamic_temperature_follows_the_entropy():
    probs = np.array([0.7, 0.2, 0.1])
    heat = 0.5 + 1.5 * (-(probs * np.log(probs)).sum() / math.log(3)) ** 1.3
    drawn = distribution(np.log(probs), min_temp=0.5, max_temp=2.0, temp_exponent=1.3)
    expected = probs ** (1 / heat) / (probs ** (1 / heat)).sum()
    assert drawn == {i: pytest.approx(expected[i], rel=1e-4) for i in range(3)}


def test_xtc_makes_all_likely_tokens_but_the_last_less_likely():
    probs = np.array([0.5, 0.3, 0.15, 0.05])
    mask = torch.ones(4, dtype=torch.bool)
    arguments = {"top_k": 3, "xtc_probability": 0.5, "xtc_threshold": 0.1, "xtc_mask": mask}
    first, second, third = probs[:3] / probs[:3].sum()
    rest = 1 + 0.5 * (first + second) / (1 - first - second)
    drawn = distribution(np.log(probs), **arguments)
    scaled = [first * 0.5, second * 0.5, third * rest]
    assert drawn == {i: pytest.approx(scaled[i], rel=1e-4) for i in range(3)}
    unsorted = distribution(np.log(probs[[2, 0, 3, 1]]), **(arguments | {"top_k": 0}))
    scaled = [0.15 * (1 + 0.5 * 0.8 / 0.2), 0.25, 0.05 * (1 + 0.5 * 0.8 / 0.2), 0.15]
    assert unsorted == {i: pytest.approx(scaled[i], rel=1e-4) for i in range(4)}
    mask[:2] = False  # too few left to exclude one
    unchanged = distribution(np.log(probs), **arguments)
    assert unchanged[0] == pytest.approx(first, rel=1e-4)


def test_xtc_leaves_a_single_likely_token_alone():
    arguments = {"xtc_probability": 0.5, "xtc_mask": torch.ones(3, dtype=torch.bool)}
    drawn = distribution(np.log([0.05, 0.9, 0.05]), **arguments)
    assert drawn == {0: pytest.approx(0.05), 1: pytest.approx(0.9), 2: pytest.approx(0.05)}


def test_skew_moves_the_draw_along_the_likeliest_first():
    logits = np.log([0.1, 0.2, 0.7])
    assert sample(logits, random=0.8)[0] == 2
    assert sample(logits, random=0.8, skew=-1.0)[0] == 2
    assert sample(logits, random=0.8, skew=2.0)[0] == 0


def test_the_likeliest_are_listed_and_filled_up_with_other_ids_at_probability_0():
    tokens, probs = torch.empty((1, 1, 4), dtype=torch.long), torch.empty((1, 1, 4))
    extension.sample_basic(
        torch.tensor([[[0.0, 3.0, 1.0, 2.0, -1.0]]]),
        output_tokens=torch.empty((1, 1), dtype=torch.long),
        output_probs=torch.empty((1, 1)),
        output_ktokens=tokens,
        output_kprobs=probs,
        **(SWITCHED_OFF | {"top_k": 2}),
    )
    expected = softmax([3.0, 2.0])
    assert tokens.flatten().tolist() == [1, 3, 0, 2]
    assert probs.flatten().tolist() == [*map(pytest.approx, expected), 0.0, 0.0]


def test_each_row_of_a_batch_is_drawn_by_itself():
    tokens, probs = torch.empty((3, 1), dtype=torch.long), torch.empty((3, 1))
    logits = torch.full((3, 1, 40), -20.0)
    logits[0, 0, 5] = logits[1, 0, 39] = logits[2, 0, 0] = 20.0
    logits[2, 0, 8] = 40.0
    allowed = torch.ones((3, 40), dtype=torch.bool)
    allowed[2, 8] = False
    extension.sample_basic(
        logits,
        output_tokens=tokens,
        output_probs=probs,
        output_ktokens=NONE,
        output_kprobs=NONE,
        **(SWITCHED_OFF | {"logit_filter": allowed}),
    )
    assert tokens.flatten().tolist() == [5, 39, 0]
