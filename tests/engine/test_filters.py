"""The filters against their definitions in double precision, token by token."""

import itertools
import math
from collections import Counter

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from switchyard.engine.backends.sampling import filters

SOME = settings(max_examples=60)
# Logits from flat to peaked, of few tokens and of more than the filters look at first.
rows = st.tuples(
    st.integers(0, 10**6), st.sampled_from([1, 2, 3, 8, 300, 700]), st.sampled_from([0.1, 1, 4])
)
shares = st.floats(0.01, 0.99)


def made(row, num_excluded=0):
    seed, size, spread = row
    logits = torch.randn(1, size, generator=torch.Generator().manual_seed(seed)) * spread
    logits[0, : min(num_excluded, size - 1)] = -math.inf
    return logits


def probabilities(logits):
    """The probabilities of one row: [(probability, token id)], the likeliest first."""
    values = logits[0].double().tolist()
    top = max(values)
    weights = [math.exp(value - top) for value in values]
    return sorted(((w / sum(weights), i) for i, w in enumerate(weights)), reverse=True)


def kept(logits):
    return {i for i, value in enumerate(logits[0].tolist()) if value > -math.inf}


def check(logits, keep, expected, near=()):
    """`keep` leaves `expected` of `logits`, whatever it does with tokens at a border, `near`."""
    before = logits.clone()
    keep(logits)
    left = kept(logits)
    assert expected - set(near) <= left <= expected | set(near)
    assert torch.equal(logits[0, sorted(left)], before[0, sorted(left)])
    # The same in company of another row.
    both = torch.cat((before.flip(-1), before))
    keep(both)
    assert kept(both[1:]) == left


@SOME
@given(rows, st.integers(1, 400), st.integers(0, 5))
def test_top_k(row, count, num_excluded):
    logits = made(row, num_excluded)
    best = {i for p, i in probabilities(logits)[:count] if p > 0}
    check(logits, lambda x: filters.top_k(x, count), best)


def prefix(probs, limit):
    """The first of `probs` that sum to `limit` at least; those at which that is a close call."""
    total, expected, near = 0.0, [], []
    for p, i in probs:
        if abs(total - limit) < 1e-5:
            near.append(i)
        if total >= limit and expected:
            break
        expected.append(i)
        total += p
    return set(expected), near


@SOME
@given(rows, shares, st.integers(0, 5))
def test_top_p(row, limit, num_excluded):
    logits = made(row, num_excluded)
    expected, near = prefix([(p, i) for p, i in probabilities(logits) if p > 0], limit)
    check(logits, lambda x: filters.top_p(x, limit), expected, near)


def test_top_p_of_0_is_the_likeliest_and_equal_ones_stay_together():
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]])
    filters.top_p(logits, 0.0)
    assert kept(logits) == {1, 2}


WIDE = 50_000  # tokens of a vocabulary


def wide(spread, num_rows=8):
    """Rows of which the likeliest that many tokens have nearly all of the probability."""
    generator = torch.Generator().manual_seed(0)
    rows = -torch.rand(num_rows, WIDE, generator=generator)
    for row in rows:
        row[torch.randperm(WIDE, generator=generator)[:spread]] += 20.0
    return rows


@pytest.mark.parametrize("limit", [0.3, 0.95])
def test_top_p_is_alike_for_narrow_and_flat_rows_together(limit):
    spreads = (1, 200, 300, 4000, 6000, WIDE)
    together = torch.cat([wide(spread, 1) for spread in spreads])
    probs = together.double().softmax(-1)
    values, order = probs.sort(-1, descending=True)
    is_kept = torch.zeros_like(probs, dtype=torch.bool)
    is_kept.scatter_(1, order, values.cumsum(-1) - values < limit)
    limits = torch.full((len(spreads), 1), limit)
    filters.top_p(together, limits)
    found = together > -math.inf
    # Sums in float32 may end a token sooner or later in some thousand.
    assert ((found != is_kept).sum(-1) <= 1 + is_kept.sum(-1) // 500).all()
    for spread, row in zip(spreads, found, strict=True):
        alone = wide(spread, 1)
        filters.top_p(alone, torch.tensor([[limit]]))
        assert torch.equal(alone[0] > -math.inf, row)


def test_a_flat_row_takes_no_others_along(monkeypatch):
    looked_at = []
    topk = torch.Tensor.topk

    def counted(logits, count):
        looked_at.append((len(logits), count))
        return topk(logits, count)

    monkeypatch.setattr(torch.Tensor, "topk", counted)
    filters.top_p(torch.cat([wide(100, 5), wide(2000, 2), wide(WIDE, 1)]), torch.full((8, 1), 0.9))
    assert looked_at == [(8, 256), (3, 4096), (1, WIDE)]
    looked_at.clear()
    limits = torch.tensor([[0.9], [math.inf]])  # the second keeps all
    filters.top_p(torch.cat([wide(100, 1), wide(WIDE, 1)]), limits)
    assert looked_at == [(2, 256)]


@pytest.mark.parametrize(("keep", "power"), [(filters.min_p, 1), (filters.top_a, 2)])
@SOME
@given(rows, shares)
def test_min_p_and_top_a(keep, power, row, factor):
    logits = made(row)
    probs = probabilities(logits)
    border = factor * probs[0][0] ** power
    near = [i for p, i in probs if abs(p - border) < 1e-5 * border]
    check(logits, lambda x: keep(x, factor), {i for p, i in probs if p >= border}, near)


@SOME
@given(rows, shares)
def test_tail_free(row, limit):
    logits = made(row)
    probs = probabilities(logits)
    slopes = [a - b for (a, _), (b, _) in itertools.pairwise(probs)]
    curves = [abs(a - b) for a, b in itertools.pairwise(slopes)]
    expected, near, total = {probs[0][1]}, [], 0.0
    for (_, i), curve in zip(probs[1:], curves, strict=False):
        total += curve / (sum(curves) or 1)
        if abs(total - limit) < 1e-4:
            near = [j for _, j in probs[1:]]
        if total > limit:
            break
        expected.add(i)
    if len(probs) < 3:
        expected = {i for _, i in probs}
    assume(not near)
    check(logits, lambda x: filters.tail_free(x, limit), expected)


def of_gaps(logits):
    """[(gap, (probability, token id))], those whose surprise is nearest to the entropy first."""
    probs = [(p, i) for p, i in probabilities(logits) if p > 0]
    entropy = -sum(p * math.log(p) for p, _ in probs)
    return sorted((abs(-math.log(p) - entropy), (p, i)) for p, i in probs)


@SOME
@given(rows, shares, st.integers(0, 5))
def test_typical(row, limit, num_excluded):
    logits = made(row, num_excluded)
    nearest = of_gaps(logits)
    assume(all(b - a > 1e-5 for (a, _), (b, _) in itertools.pairwise(nearest)))
    expected, near = prefix([pair for _, pair in nearest], limit)
    check(logits, lambda x: filters.typical(x, limit), expected, near)


@pytest.mark.parametrize("limit", [0.5, 0.9, 0.99])
def test_typical_of_a_flat_distribution(limit):
    """More of a thousand tokens are kept than are looked at first."""
    logits = torch.linspace(0.0, 0.5, 1000)[None]
    expected, near = prefix([pair for _, pair in of_gaps(logits)], limit)
    assert len(expected) > 300  # more than CANDIDATES
    check(logits, lambda x: filters.typical(x, limit), expected, near)


@SOME
@given(rows, st.floats(-3, 12))
def test_mirostat(row, max_surprise):
    logits = made(row)
    probs = probabilities(logits)
    surprises = {i: -math.log2(p) for p, i in probs if p > 0}
    near = [i for i, surprise in surprises.items() if abs(surprise - max_surprise) < 1e-4]
    expected = {i for i, surprise in surprises.items() if surprise <= max_surprise}
    likeliest = probs[0][1]
    check(logits, lambda x: filters.mirostat(x, max_surprise), expected | {likeliest}, near)


@SOME
@given(rows, st.floats(0.001, 0.5), st.booleans())
def test_xtc_excludes_the_top_choices_but_the_least_of_them(row, threshold, protects):
    logits = made(row)
    probs = probabilities(logits)
    assume(all(abs(p - threshold) > 1e-6 for p, _ in probs))
    above = [i for p, i in probs if p >= threshold]
    everything = {i for _, i in probs}
    # The last of them isn't excluded, and protecting it changes nothing.
    kept = torch.tensor([above[0] if protects and above else probs[-1][1]])
    excluded = set(above[:-1]) if not set(above[:-1]) & set(kept.tolist()) else set()
    check(logits, lambda x: filters.exclude_top_choices(x, threshold, kept), everything - excluded)


# What changes probabilities


@SOME
@given(rows, st.floats(0.1, 5), st.floats(1, 3), st.integers(0, 2))
def test_smoothing(row, factor, curve, num_excluded):
    logits = made(row, num_excluded)
    before = logits[0].double().tolist()
    filters.smooth(logits, factor, curve)
    top = max(before)
    for value, smoothed in zip(before, logits[0].tolist(), strict=True):
        x = value - top
        expected = top - factor * (3 - curve) / 2 * x * x + factor * (curve - 1) / 2 * x**3
        if value == -math.inf:
            expected = -math.inf
        assert smoothed == pytest.approx(expected, rel=1e-4, abs=1e-4)


@SOME
@given(rows, st.floats(0.05, 2), st.floats(0, 3), st.floats(0.1, 3), st.integers(0, 5))
def test_dynamic_temperature(row, low, more, exponent, num_excluded):
    logits = made(row, num_excluded)
    probs = [p for p, _ in probabilities(logits) if p > 0]
    share = -sum(p * math.log(p) for p in probs) / math.log(max(len(probs), 2))
    temperature = low + more * min(max(share, 0), 1) ** exponent
    expected = logits.double() / temperature
    filters.heat_by_entropy(logits, low, low + more, exponent)
    assert torch.allclose(logits.double(), expected, rtol=1e-3, atol=1e-4)


# Draws


@pytest.mark.parametrize("size", [5, filters.MAX_WHOLE + 300])
@pytest.mark.parametrize("skew", [0.0, 0.7, -0.7])
def test_draws_follow_the_distribution(size, skew):
    """Chi-square, at a level of one in a million; the points are those of a fixed seed."""
    probs = [0.4, 0.3, 0.15, 0.1, 0.05]
    places = [i * (size - 1) // 4 for i in range(5)]  # also at both ends of the vocabulary
    logits = torch.full((1, size), -math.inf)
    logits[0, places] = torch.tensor(probs).log()
    times = 20_000
    points = torch.rand((times, 1), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    drawn = Counter()
    for some in points.split(50):
        drawn.update(filters.draw(logits.repeat(50, 1), some, skew).flatten().tolist())
    assert set(drawn) <= set(places)
    ends = [sum(probs[: i + 1]) ** math.exp(skew) for i in range(5)]  # of the points before it
    expected = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    chi_square = sum(
        (drawn[place] - times * p) ** 2 / (times * p)
        for place, p in zip(places, expected, strict=True)
    )
    assert chi_square < 33.4  # 4 degrees of freedom


@pytest.mark.parametrize("size", [64, filters.MAX_WHOLE + 300])
@pytest.mark.parametrize("point", [0.0, 0.5, math.nextafter(1, 0)])
def test_no_draw_leaves_the_tokens_that_are_possible(size, point):
    logits = torch.full((1, size), -math.inf)
    logits[0, 17:40] = torch.linspace(-3, 3, 23)
    for skew in (0.0, 2.0, -2.0):
        token = filters.draw(logits.clone(), torch.tensor([[point]], dtype=torch.float64), skew)
        assert 17 <= token.item() < 40
