"""The next token of a job: what its Sampling asks for, step by step, on the row of its logits.

Runs in a sampling thread, inside `generator.iterate()`.
"""

import math
import random
from collections.abc import Callable, Sequence
from functools import partial

import torch

from engine.backends import filters, penalties
from engine.errors import InvalidJob, JobFailed
from engine.messages import Job
from engine.sampling import BannedString

GREEDY_BELOW = 0.01  # temperature; the library's own border

Step = Callable[[torch.Tensor], None]


class Sampler:
    """Draws the tokens of one job: one draw a token, from a generator of its own, so that the same
    seed gives the same text in any company.
    """

    def __init__(
        self,
        job: Job,
        stop_token_ids: Sequence[int],
        pieces: Sequence[bytes],
        newline_ids: Sequence[int],
        vocab_size: int,
    ) -> None:
        """`vocab_size`: of the tokenizer; logits beyond it are of no token. `newline_ids`: tokens
        that are a line's end.
        """
        sampling = self._sampling = job.sampling
        self._vocab_size = vocab_size
        self._num_prompt = len(job.prompt)
        self._min_tokens = job.min_new_tokens
        self._stop_token_ids = list(stop_token_ids)
        self._first_ids = torch.tensor(job.healing.token_ids) if job.healing else None
        # Unsigned: Python's generator takes the absolute value, and -1 would be 1.
        self._random = random.Random(None if sampling.seed is None else sampling.seed % 2**64)
        self._protected = torch.tensor([*stop_token_ids, *newline_ids], dtype=torch.long)
        self._max_surprise = 2 * sampling.mirostat_tau
        self._bans = _Bans(sampling.banned_strings, pieces) if sampling.banned_strings else None
        self._is_heated = sampling.dynatemp_high > 0
        self._is_greedy = sampling.temperature < GREEDY_BELOW and not self._is_heated
        self._penalties = self._make_penalties()
        self._filters = self._make_filters()

    def draw(self, logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """The next token, (1, 1), by `logits`, (1, vocabulary with padding), float32, which are
        changed; `token_ids`: of prompt and completion, (1, tokens). Raises JobFailed, or
        InvalidJob where what it asks for leaves no token.
        """
        if self._vocab_size < logits.shape[-1]:
            logits[:, self._vocab_size :] = -math.inf
        num_drawn = token_ids.shape[-1] - self._num_prompt
        for penalize in self._penalties:
            penalize(logits, token_ids)
        if num_drawn < self._min_tokens:
            logits[:, self._stop_token_ids] = -math.inf
        if num_drawn == 0 and self._first_ids is not None:
            penalties.keep_only(logits, self._first_ids)
        if self._bans is not None:
            self._bans.mask(logits)
        _check(logits.amax().item())
        for step in self._filters:
            step(logits)
        token = self._choose(logits)
        if self._bans is not None:
            self._bans.note(int(token.item()))
        return token

    def _choose(self, logits: torch.Tensor) -> torch.Tensor:
        sampling = self._sampling
        if self._is_greedy:
            return logits.argmax(-1, keepdim=True)
        if sampling.mirostat:
            filters.mirostat(logits, self._max_surprise)
        point = torch.tensor([[self._random.random()]], dtype=torch.float64)
        token = filters.draw(logits, point, sampling.skew)
        if sampling.mirostat:  # by the probability among those that were left, as llama.cpp
            surprise = -logits.log_softmax(-1).gather(-1, token).item() / math.log(2)
            self._max_surprise -= sampling.mirostat_eta * (surprise - sampling.mirostat_tau)
        return token

    def _make_penalties(self) -> list[Callable[[torch.Tensor, torch.Tensor], None]]:
        sampling = self._sampling
        steps: list[Callable[[torch.Tensor, torch.Tensor], None]] = []
        if sampling.repetition_penalty != 1.0:
            steps.append(
                partial(
                    penalties.penalize_repetition,
                    penalty=sampling.repetition_penalty,
                    full=sampling.repetition_range,
                    decay=sampling.repetition_decay,
                )
            )
        if sampling.frequency_penalty or sampling.presence_penalty:
            steps.append(self._penalize_completion)
        if sampling.dry_multiplier:
            steps.append(self._make_dry())
        if sampling.logit_bias:
            steps.append(self._make_bias())
        if sampling.banned_token_ids:
            banned = torch.tensor(sampling.banned_token_ids)
            steps.append(lambda logits, _: _fill(logits, banned))
        if sampling.allowed_token_ids:
            allowed = torch.tensor(sampling.allowed_token_ids)
            steps.append(lambda logits, _: penalties.keep_only(logits, allowed))
        return steps

    def _penalize_completion(self, logits: torch.Tensor, token_ids: torch.Tensor) -> None:
        penalties.penalize_frequency(
            logits,
            token_ids[:, self._num_prompt :],
            self._sampling.frequency_penalty,
            self._sampling.presence_penalty,
        )

    def _make_dry(self) -> Callable[[torch.Tensor, torch.Tensor], None]:
        sampling = self._sampling
        is_breaker = torch.zeros(self._vocab_size, dtype=torch.bool)
        is_breaker[list(sampling.dry_breakers)] = True
        return lambda logits, token_ids: penalties.penalize_continuations(
            logits,
            token_ids[:, -sampling.dry_range :],  # 0: all
            is_breaker,
            sampling.dry_multiplier,
            sampling.dry_base,
            sampling.dry_allowed_length,
        )

    def _make_bias(self) -> Callable[[torch.Tensor, torch.Tensor], None]:
        ids, values = zip(*self._sampling.logit_bias, strict=True)
        biased, bias = torch.tensor(ids)[None], torch.tensor(values)[None]
        return lambda logits, _: _discard(logits.scatter_add_(-1, biased, bias))

    def _make_filters(self) -> list[Step]:
        """In the order of application. What can't change which token is the likeliest is left out
        where that one is taken.
        """
        s = self._sampling
        heat = self._make_heat()
        if self._is_greedy and not (s.temperature_last and s.xtc_probability):
            return []
        steps: list[Step | None] = [
            partial(filters.smooth, factor=s.smoothing_factor, curve=s.smoothing_curve)
            if s.smoothing_factor
            else None,
            None if s.temperature_last else heat,
            partial(filters.top_k, count=s.top_k) if s.top_k else None,
            partial(filters.top_p, limit=s.top_p) if s.top_p < 1 else None,
            partial(filters.top_a, factor=s.top_a) if s.top_a else None,
            partial(filters.min_p, factor=s.min_p) if s.min_p else None,
            partial(filters.tail_free, limit=s.tfs) if s.tfs < 1 else None,
            partial(filters.typical, limit=s.typical_p) if s.typical_p < 1 else None,
            self._exclude_top_choices if s.xtc_probability else None,
            heat if s.temperature_last else None,
        ]
        return [step for step in steps if step is not None]

    def _make_heat(self) -> Step | None:
        s = self._sampling
        if self._is_heated:
            low, high, exponent = s.dynatemp_low, s.dynatemp_high, s.dynatemp_exponent
            return partial(filters.heat_by_entropy, low=low, high=high, exponent=exponent)
        if self._is_greedy or s.temperature == 1.0:
            return None
        return partial(filters.heat, temperature=s.temperature)

    def _exclude_top_choices(self, logits: torch.Tensor) -> None:
        if self._random.random() < self._sampling.xtc_probability:
            filters.exclude_top_choices(logits, self._sampling.xtc_threshold, self._protected)


class _Bans:
    """Strings that must not come to be: a token that would complete one is masked, so nothing that
    was told is ever taken back.
    """

    def __init__(self, banned: Sequence[BannedString], pieces: Sequence[bytes]) -> None:
        self._banned = banned
        self._pieces = pieces
        self._tail = b""  # of the completion, as long as a banned string's beginning may be
        self._max_tail = max(len(string.data) for string in banned) - 1
        self._containing = torch.tensor([i for s in banned for i in s.containing], dtype=torch.long)

    def mask(self, logits: torch.Tensor) -> None:
        _fill(logits, self._containing)
        for string in self._banned:
            for length in range(1, min(len(string.data) - 1, len(self._tail)) + 1):
                if string.completing[length] and self._tail.endswith(string.data[:length]):
                    _fill(logits, torch.tensor(string.completing[length]))

    def note(self, token_id: int) -> None:
        tail = self._tail + (self._pieces[token_id] if token_id < len(self._pieces) else b"")
        self._tail = tail[-self._max_tail :] if self._max_tail else b""


def _check(top: float) -> None:
    if top == -math.inf:
        raise InvalidJob("no token is left to choose from: all are banned")
    if not math.isfinite(top):
        raise JobFailed("the model's logits are not numbers")


def _fill(logits: torch.Tensor, token_ids: torch.Tensor) -> None:
    logits.index_fill_(-1, token_ids, -math.inf)


def _discard(_: object) -> None:
    """Of a step, whose result is what it did in place."""
