"""Draws from the whole vocabulary: filters one behind another, and rows that take some alone."""

import itertools
import math

import pytest
import torch

from switchyard.engine.backends.sampling import filters, whole
from switchyard.engine.backends.sampling.draw import Draw
from switchyard.engine.backends.sampling.sampler import Sampler
from switchyard.engine.sampling import Sampling
from tests.scripted import job

SIZE = 40
CPU = torch.device("cpu")


def dynatemp(low, high, exponent, **more):
    settings = {"dynatemp_low": low, "dynatemp_high": high, "dynatemp_exponent": exponent}
    return {**settings, **more}, filters.heat_by_entropy, low, high, exponent


# In the order of docs/parameters.md: the settings of a stage, its function and the arguments.
STAGES = {
    "smoothing": ({"smoothing_factor": 0.3, "smoothing_curve": 1.5}, filters.smooth, 0.3, 1.5),
    "dynamic temperature": dynatemp(0.4, 3.0, 1.4),
    "temperature": ({"temperature": 0.6}, filters.heat, 0.6),
    "top_k": ({"top_k": 11}, filters.top_k, 11),
    "top_p": ({"top_p": 0.8}, filters.top_p, 0.8),
    "top_a": ({"top_a": 0.4}, filters.top_a, 0.4),
    "min_p": ({"min_p": 0.15}, filters.min_p, 0.15),
    "tfs": ({"tfs": 0.8}, filters.tail_free, 0.8),
    "typical_p": ({"typical_p": 0.6}, filters.typical, 0.6),
    "xtc": (
        {"xtc_probability": 1.0, "xtc_threshold": 0.08},
        filters.exclude_top_choices,
        0.08,
        None,
    ),
    "last temperature": ({"temperature": 2.5, "temperature_last": True}, filters.heat, 2.5),
    "last dynamic temperature": dynatemp(0.5, 2.0, 0.7, temperature_last=True),
    "mirostat": ({"mirostat": True, "mirostat_tau": 1.1}, filters.mirostat, 2 * 1.1),
}
TEMPERATURES = {name for name in STAGES if "temperature" in name}
PAIRS = [pair for pair in itertools.combinations(STAGES, 2) if not TEMPERATURES.issuperset(pair)]


def logits_of(seed):
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) * 2


def sampler_of(seed=1, **fields):
    return Sampler(job(f"job{seed}", sampling=Sampling(seed=seed, **fields)), (), [], ())


@pytest.mark.parametrize("names", PAIRS, ids=", ".join)
def test_each_filter_has_what_those_before_it_have_left(monkeypatch, names):
    (first, second), left = names, []
    draw = filters.draw

    def noted(logits, *rest):
        left.append(logits.clone())
        return draw(logits, *rest)

    monkeypatch.setattr(filters, "draw", noted)
    one = sampler_of(**STAGES[first][0], **STAGES[second][0])
    other = sampler_of(2, temperature=3.0)
    for seed in range(12):
        row = logits_of(seed)[None]
        whole.draw([other, one], row.repeat(2, 1))
        if "mirostat" in names:
            one = sampler_of(**STAGES[first][0], **STAGES[second][0])  # its border moves
        for _, keep, *arguments in map(STAGES.get, names):
            keep(row, *arguments)
        assert torch.allclose(left[-1][1:], row, atol=1e-5)
        assert torch.allclose(left[-1][0], logits_of(seed) / 3, atol=1e-5)


@pytest.mark.parametrize(("top_k", "probabilities"), [(0, (0.5, 0.25, 0.25)), (2, (2 / 3, 1 / 3))])
def test_mirostats_border_moves_by_how_surprising_a_token_was(top_k, probabilities):
    """In bits, among the tokens that were left."""
    fields = {"mirostat": True, "mirostat_tau": 1.25, "mirostat_eta": 0.3, "top_k": top_k}
    logits, border, seen = torch.tensor([[0.5, 0.25, 0.2499999]]).log(), 2.5, set()
    sampler = sampler_of(**fields)
    for _ in range(8):
        token_id = whole.draw([sampler], logits.clone())[0].item()
        border -= 0.3 * (-math.log2(probabilities[token_id]) - 1.25)
        assert sampler.max_surprise == pytest.approx(border, abs=1e-4)
        seen.add(token_id)
    assert len(seen) > 1


def test_a_text_that_outgrows_its_place_is_penalized_from_its_beginning_to_its_end():
    sampler = sampler_of(temperature=0.0, presence_penalty=2.0)
    draw, logits = Draw(SIZE, CPU), torch.zeros((1, SIZE))
    logits[0, 3:6] = torch.tensor([1.5, 1.0, 0.5])
    sampler.accept(4)
    assert draw([sampler], logits.clone(), None).token_ids == [3]
    for token_id in [7] * 2000 + [3]:
        sampler.accept(token_id)
    assert draw([sampler], logits.clone(), None).token_ids == [5]
