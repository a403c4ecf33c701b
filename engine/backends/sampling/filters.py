"""Which tokens may be drawn, as published: on rows of logits, (rows, vocabulary), float32.

Each sets what it excludes to -inf, in place; ties at a border are kept, and never is everything
excluded. Where it says so, a parameter may be a column, (rows, 1). Not the library's own, whose
top_p drops the token that crosses the limit and keeps less likely ones, and whose min_p and top_a
let a stale candidate back in.
"""

import math

import torch
import torch.nn.functional as F

# What is kept is rarely more than the first, hardly ever more than the second. To find that many is
# cheaper than to sort.
CANDIDATES = (256, 4096)
NEGLIGIBLE = 1e-10  # a probability that may be left out of a sort


def top_k(logits: torch.Tensor, count: int | torch.Tensor, max_count: int | None = None) -> None:
    """`count`: as a column, with `max_count`, the highest of it; 0: all."""
    most = min(max_count if max_count is not None else int(count), logits.shape[-1])
    if most == logits.shape[-1] and not isinstance(count, torch.Tensor):
        return
    counts = torch.as_tensor(count, device=logits.device).clamp(max=logits.shape[-1])
    best = logits.topk(most).values
    border = best.gather(-1, (counts.long() - 1).clamp(min=0).expand(len(logits), 1))
    _exclude_below(logits, border.masked_fill(counts == 0, -math.inf))


def top_p(logits: torch.Tensor, limit: float | torch.Tensor) -> None:
    """The smallest set of the likeliest tokens with at least that much probability (Holtzman et al.
    2020, "The Curious Case of Neural Text Degeneration"). `limit`: as a column, inf: all.
    """
    limits = torch.as_tensor(limit, device=logits.device).expand(len(logits), 1)
    log_total = logits.logsumexp(-1, keepdim=True)
    first, *more = _counts(logits.shape[-1])
    border, is_open = _border(logits, log_total, limits, first)
    # As a rule each limit is reached by now. More is looked at only for the rows where it is not.
    if more and is_open.any():
        rows = is_open.nonzero()[:, 0]
        for count in more:
            border[rows], is_open = _border(logits[rows], log_total[rows], limits[rows], count)
            rows = rows[is_open]
            if not len(rows):
                break
    _exclude_below(logits, border.masked_fill(limits.isinf(), -math.inf))


def top_a(logits: torch.Tensor, factor: float) -> None:
    """At least `factor` times the square of the highest probability (BlinkDL 2022, RWKV-LM)."""
    top = logits.amax(-1, keepdim=True)
    log_total = logits.logsumexp(-1, keepdim=True)
    _exclude_below(logits, torch.minimum(2 * top - log_total + math.log(factor), top))


def min_p(logits: torch.Tensor, factor: float | torch.Tensor) -> None:
    """At least that share of the highest probability (Nguyen et al. 2024, "Min-p Sampling").
    `factor`: as a column, 0: all.
    """
    factors = torch.as_tensor(factor, dtype=logits.dtype, device=logits.device)
    _exclude_below(logits, logits.amax(-1, keepdim=True) + factors.log())


def tail_free(logits: torch.Tensor, limit: float) -> None:
    """Up to where the second differences of the sorted probabilities, by their size, sum to that
    share (Phenix and Egan 2019, "Tail Free Sampling"). The likeliest is always kept, the least
    likely never, as in the authors' code.
    """
    values, probs, _ = _sorted(logits)
    if probs.shape[-1] < 3:
        return
    curvature = probs.diff().diff().abs()
    total = curvature.sum(-1, keepdim=True).clamp(min=torch.finfo().tiny)
    num_kept = 1 + (curvature.cumsum(-1) / total <= limit).sum(-1, keepdim=True)
    _exclude_below(logits, values.gather(-1, num_kept - 1))


def typical(logits: torch.Tensor, limit: float) -> None:
    """The smallest set of the tokens whose surprise is nearest to the expected one with at least
    that much probability (Meister et al. 2022, "Locally Typical Sampling").
    """
    logprobs = logits.log_softmax(-1)
    probs = logprobs.exp()
    distance = (-logprobs - torch.special.entr(probs).sum(-1, keepdim=True)).abs()
    for count in _counts(logits.shape[-1]):
        nearest = distance.topk(count, largest=False)
        before = _before(probs.gather(-1, nearest.indices))
        num_kept = (before < limit).sum(-1, keepdim=True)
        if (num_kept < count).all():
            break
    border = nearest.values.gather(-1, num_kept.clamp(min=1) - 1)
    logits.masked_fill_(distance > border, -math.inf)


def mirostat(logits: torch.Tensor, max_surprise: float) -> None:
    """No more than that many bits of surprise (Basu et al. 2021, "Mirostat", version 2)."""
    border = logits.logsumexp(-1, keepdim=True) - max_surprise * math.log(2)
    _exclude_below(logits, torch.minimum(border, logits.amax(-1, keepdim=True)))


def exclude_top_choices(
    logits: torch.Tensor, threshold: float, protected: torch.Tensor | None
) -> None:
    """XTC, once it is decided that it shall be done: of the tokens of at least `threshold`, all but
    the least likely; nothing if one of `protected`, token ids, would go (Weidmann 2024, pull
    request 6335 of text-generation-webui).
    """
    border = logits.logsumexp(-1, keepdim=True) + math.log(threshold)
    above = logits.masked_fill(logits < border, math.inf)
    least = above.amin(-1, keepdim=True)  # inf: none is above
    excluded = (logits >= border) & (logits > least)
    if protected is not None:
        excluded &= ~excluded[:, protected].any(-1, keepdim=True)
    logits.masked_fill_(excluded, -math.inf)


# What changes probabilities, and excludes nothing


def smooth(logits: torch.Tensor, factor: float, curve: float) -> None:
    """Quadratic sampling (kalomaze 2024), and its cubic part where `curve` is above 1: logits fall
    with the square of their distance from the highest.
    """
    top = logits.amax(-1, keepdim=True)
    below = logits - top
    quadratic, cubic = factor * (3 - curve) / 2, factor * (curve - 1) / 2
    smoothed = (
        below.square() * (cubic * below - quadratic) if cubic else below.square() * -quadratic
    )
    # An excluded token's distance is infinite, and 0 times that is not a number.
    logits.copy_((smoothed + top).masked_fill_(logits.isneginf(), -math.inf))


def heat(logits: torch.Tensor, temperature: float | torch.Tensor) -> None:
    logits.div_(temperature)


def heat_by_entropy(logits: torch.Tensor, low: float, high: float, exponent: float) -> None:
    """Dynamic temperature (kalomaze 2023): the higher, between the two, the nearer the entropy is
    to the highest that so many candidates can have.
    """
    num_candidates = (~logits.isneginf()).sum(-1, keepdim=True)
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1, keepdim=True)
    share = (entropy / num_candidates.clamp(min=2).log()).clamp(0, 1)
    logits.div_((low + (high - low) * share**exponent).clamp(min=0.01))


def draw(logits: torch.Tensor, points: torch.Tensor, skew: float = 0.0) -> torch.Tensor:
    """The token of each row, (rows, 1), in whose part of the probability its point in [0, 1),
    (rows, 1) float64, lies.

    Without `skew` tokens lie in the order of their ids; with it by falling probability, and the
    point is raised to exp(-skew): above 0 the less likely ones gain (exllamav2).
    """
    if skew:
        order = _sorted(logits)[2]
        place = _find(logits.gather(-1, order).softmax(-1), points ** math.exp(-skew))
        return order.gather(-1, place)
    return _find(logits.softmax(-1), points)


BLOCK = 256  # tokens summed up together: the sums of a large vocabulary would take most of the time
MAX_WHOLE = 16384  # tokens of a vocabulary up to which that doesn't pay


def _find(probs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Index of the first whose cumulative probability exceeds the point. Never one of 0."""
    if probs.shape[-1] <= MAX_WHOLE:
        sums = probs.cumsum(-1, dtype=torch.float64)
        return torch.searchsorted(sums, _below_total(points * sums[:, -1:], sums), right=True)
    blocks = F.pad(probs, (0, -probs.shape[-1] % BLOCK)).view(len(probs), -1, BLOCK)
    sums = blocks.sum(-1).cumsum(-1, dtype=torch.float64)
    targets = _below_total(points * sums[:, -1:], sums)
    block = torch.searchsorted(sums, targets, right=True)
    inner = blocks[torch.arange(len(block), device=block.device), block[:, 0]].cumsum(
        -1, dtype=torch.float64
    )
    rest = targets - F.pad(sums, (1, 0)).gather(-1, block)
    place = torch.searchsorted(inner, _below_total(rest, inner), right=True)
    return block * BLOCK + place


def _below_total(points: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """Rounding must not carry a point beyond the last candidate."""
    total = sums[:, -1:]
    return torch.minimum(points, total.nextafter(torch.zeros_like(total)))


def _counts(size: int) -> list[int]:
    """Of candidates that are looked at, one after the other."""
    return [*(count for count in CANDIDATES if count < size), size]


def _border(
    logits: torch.Tensor, log_total: torch.Tensor, limits: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The least logit that top_p keeps, (rows, 1), by the `count` likeliest; and in which rows,
    (rows,), these don't reach a limit that there is.
    """
    highest = logits.topk(count).values
    is_kept = _before((highest - log_total).exp()) < limits
    border = highest.gather(-1, is_kept.sum(-1, keepdim=True).clamp(min=1) - 1)
    return border, is_kept[:, -1] & limits[:, 0].isfinite() & (count < logits.shape[-1])


def _exclude_below(logits: torch.Tensor, border: torch.Tensor) -> None:
    logits.masked_fill_(logits < border, -math.inf)


def _before(probs: torch.Tensor) -> torch.Tensor:
    """The probability of all that stand before each."""
    return F.pad(probs.cumsum(-1)[..., :-1], (1, 0))


def _sorted(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logits, probabilities, token ids) by falling probability, without what is negligible but
    for two, whose differences from the last count.
    """
    probs = logits.softmax(-1)
    count = int((probs > NEGLIGIBLE).sum(-1).max()) + 2
    best = probs.topk(min(count, probs.shape[-1]))
    return logits.gather(-1, best.indices), best.values, best.indices
