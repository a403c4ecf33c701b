"""Truncation filters according to their published definitions, for rows of logits, (rows,
vocabulary), float32.

Each filter sets excluded logits to -inf, in place. Tokens that tie at the limit are kept, and at
least one token is kept. A parameter may be a column, (rows, 1), if the docstring says so.

These filters replace the library's. The library's top_p drops the token that crosses the limit but
keeps less probable tokens, and its min_p and top_a readmit a candidate below the limit.
"""

import math

import torch
import torch.nn.functional as F

# Filters rarely keep more tokens than the first number, and hardly ever more than the second. A
# topk of that size is cheaper than a sort.
CANDIDATES = (256, 4096)
# Maximum number of logits that a GPU sorts as a whole. Checking whether fewer tokens reach a limit
# would make the host wait for the pass before the draw.
MAX_SORTED = 2**22
NEGLIGIBLE = 1e-10  # lower probabilities are left out of a sort


def top_k(logits: torch.Tensor, count: int | torch.Tensor, max_count: int | None = None) -> None:
    """Keep the `count` tokens with the highest logits, or all tokens if `count` is 0. `count` may
    be a column; `max_count` is then its maximum.
    """
    most = min(max_count if max_count is not None else int(count), logits.shape[-1])
    if most == logits.shape[-1] and not isinstance(count, torch.Tensor):
        return
    counts = torch.as_tensor(count, device=logits.device).clamp(max=logits.shape[-1])
    best = logits.topk(most).values
    border = best.gather(-1, (counts.long() - 1).clamp(min=0).expand(len(logits), 1))
    _exclude_below(logits, border.masked_fill(counts == 0, -math.inf))


def top_p(logits: torch.Tensor, limit: float | torch.Tensor) -> None:
    """Keep the smallest set of most probable tokens whose probability mass is at least `limit`
    (Holtzman et al. 2020, "The Curious Case of Neural Text Degeneration"). `limit` may be a column.
    With inf, keep all tokens.
    """
    limits = torch.as_tensor(limit, device=logits.device).expand(len(logits), 1)
    log_total = logits.logsumexp(-1, keepdim=True)
    first, *more = _counts(logits.shape[-1])
    if logits.is_cuda and logits.numel() <= MAX_SORTED:
        first, more = logits.shape[-1], []  # all, without a check
    border, is_open = _border(logits, log_total, limits, first)
    # Usually each limit is reached by now. Only the other rows need more candidates.
    if more and is_open.any():
        rows = is_open.nonzero()[:, 0]
        for count in more:
            border[rows], is_open = _border(logits[rows], log_total[rows], limits[rows], count)
            rows = rows[is_open]
            if not len(rows):
                break
    _exclude_below(logits, border.masked_fill(limits.isinf(), -math.inf))


def top_a(logits: torch.Tensor, factor: float) -> None:
    """Keep tokens with probability >= `factor` times the square of the highest probability (BlinkDL
    2022, RWKV-LM).
    """
    top = logits.amax(-1, keepdim=True)
    log_total = logits.logsumexp(-1, keepdim=True)
    _exclude_below(logits, torch.minimum(2 * top - log_total + math.log(factor), top))


def min_p(logits: torch.Tensor, factor: float | torch.Tensor) -> None:
    """Keep tokens with probability >= `factor` times the highest probability (Nguyen et al. 2024,
    "Min-p Sampling"). `factor` may be a column. With 0, keep all tokens.
    """
    factors = torch.as_tensor(factor, dtype=logits.dtype, device=logits.device)
    _exclude_below(logits, logits.amax(-1, keepdim=True) + factors.log())


def tail_free(logits: torch.Tensor, limit: float) -> None:
    """Keep tokens until the absolute second differences of the sorted probabilities reach the share
    `limit` of their sum (Phenix and Egan 2019, "Tail Free Sampling"). As in the authors' code, the
    most probable token is always kept, and the least probable token never is.
    """
    values, probs, _ = _sorted(logits)
    if probs.shape[-1] < 3:
        return
    curvature = probs.diff().diff().abs()
    total = curvature.sum(-1, keepdim=True).clamp(min=torch.finfo().tiny)
    num_kept = 1 + (curvature.cumsum(-1) / total <= limit).sum(-1, keepdim=True)
    _exclude_below(logits, values.gather(-1, num_kept - 1))


def typical(logits: torch.Tensor, limit: float) -> None:
    """Keep the tokens whose surprise is nearest to the expected surprise, as the smallest set whose
    probability mass reaches `limit` (Meister et al. 2022, "Locally Typical Sampling").
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
    """Keep tokens with a surprise of at most `max_surprise` bits (Basu et al. 2021, "Mirostat",
    version 2).
    """
    border = logits.logsumexp(-1, keepdim=True) - max_surprise * math.log(2)
    _exclude_below(logits, torch.minimum(border, logits.amax(-1, keepdim=True)))


def exclude_top_choices(
    logits: torch.Tensor, threshold: float, protected: torch.Tensor | None
) -> None:
    """XTC, after its random decision: exclude all tokens with probability >= `threshold` except the
    least probable one. Excludes no tokens if this would exclude one of the `protected` token ids
    (Weidmann 2024, pull request 6335 of text-generation-webui).
    """
    border = logits.logsumexp(-1, keepdim=True) + math.log(threshold)
    above = logits.masked_fill(logits < border, math.inf)
    least = above.amin(-1, keepdim=True)  # inf if no token is above
    excluded = (logits >= border) & (logits > least)
    if protected is not None:
        excluded &= ~excluded[:, protected].any(-1, keepdim=True)
    logits.masked_fill_(excluded, -math.inf)


# Functions that change probabilities, and exclude nothing


def smooth(logits: torch.Tensor, factor: float, curve: float) -> None:
    """Quadratic sampling (kalomaze 2024), with its cubic part if `curve` is above 1: logits
    decrease with the square of their distance from the highest.
    """
    top = logits.amax(-1, keepdim=True)
    below = logits - top
    quadratic, cubic = factor * (3 - curve) / 2, factor * (curve - 1) / 2
    smoothed = (
        below.square() * (cubic * below - quadratic) if cubic else below.square() * -quadratic
    )
    # An excluded token's distance is infinite, and 0 times infinity is NaN.
    logits.copy_((smoothed + top).masked_fill_(logits.isneginf(), -math.inf))


def heat(logits: torch.Tensor, temperature: float | torch.Tensor) -> None:
    logits.div_(temperature)


def heat_by_entropy(logits: torch.Tensor, low: float, high: float, exponent: float) -> None:
    """Dynamic temperature (kalomaze 2023), which grows from `low` to `high` with the ratio of the
    entropy to its maximum for this number of candidates.
    """
    num_candidates = (~logits.isneginf()).sum(-1, keepdim=True)
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1, keepdim=True)
    share = (entropy / num_candidates.clamp(min=2).log()).clamp(0, 1)
    logits.div_((low + (high - low) * share**exponent).clamp(min=0.01))


def draw(logits: torch.Tensor, points: torch.Tensor, skew: float = 0.0) -> torch.Tensor:
    """Returns the token of each row, (rows, 1), whose part of the probability mass contains the
    row's point in [0, 1). `points`: (rows, 1), float64.

    Without `skew`, tokens are ordered by id. With `skew`, they are ordered by decreasing
    probability, and the point is raised to the power exp(-skew), as in exllamav2. A value above 0
    favors less probable tokens.
    """
    if skew:
        order = _sorted(logits)[2]
        place = _find(logits.gather(-1, order).softmax(-1), points ** math.exp(-skew))
        return order.gather(-1, place)
    return _find(logits.softmax(-1), points)


BLOCK = 256  # tokens in a partial sum; a sum over a large vocabulary would dominate the time
MAX_WHOLE = 16384  # up to this vocabulary size, partial sums don't pay


def _find(probs: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Returns the index of the first token whose cumulative probability exceeds the point. This is
    never a token with probability 0.
    """
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
    """Prevents rounding from moving a point beyond the last candidate."""
    total = sums[:, -1:]
    return torch.minimum(points, total.nextafter(torch.zeros_like(total)))


def _counts(size: int) -> list[int]:
    """The numbers of candidates to try in turn."""
    return [*(count for count in CANDIDATES if count < size), size]


def _border(
    logits: torch.Tensor, log_total: torch.Tensor, limits: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the lowest logit that top_p keeps among the `count` most probable tokens, (rows, 1),
    and the rows whose limit these tokens don't reach, (rows,).
    """
    # On a GPU, topk takes twice as long as a sort if it returns the whole row.
    is_all = logits.is_cuda and count == logits.shape[-1]
    highest = (logits.sort(descending=True) if is_all else logits.topk(count)).values
    is_kept = _before((highest - log_total).exp()) < limits
    border = highest.gather(-1, is_kept.sum(-1, keepdim=True).clamp(min=1) - 1)
    return border, is_kept[:, -1] & limits[:, 0].isfinite() & (count < logits.shape[-1])


def _exclude_below(logits: torch.Tensor, border: torch.Tensor) -> None:
    logits.masked_fill_(logits < border, -math.inf)


def _before(probs: torch.Tensor) -> torch.Tensor:
    """The probability mass before each candidate."""
    return F.pad(probs.cumsum(-1)[..., :-1], (1, 0))


def _sorted(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns (logits, probabilities, token ids) in descending order of probability. Leaves out
    tokens of negligible probability except two, which are needed for the last differences.
    """
    probs = logits.softmax(-1)
    count = int((probs > NEGLIGIBLE).sum(-1).max()) + 2
    best = probs.topk(min(count, probs.shape[-1]))
    return logits.gather(-1, best.indices), best.values, best.indices
