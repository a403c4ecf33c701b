"""The sampling state of one job: its Sampling, random numbers, and tokens so far. Used on the
engine thread.

`draw.Draw` makes the draws, for all jobs together.
"""

import math
import random
from collections.abc import Iterator, Sequence

import numpy as np

from switchyard.engine.backends.sampling.rules import Rule
from switchyard.engine.job import Job
from switchyard.engine.sampling import BannedString, Stage

GREEDY_BELOW = 0.01  # temperature, as in the library
BY_ROW: set[Stage] = {"shape", "filter row", "mirostat"}  # stages that work row by row
MAX_FEW = 100  # highest top_k of rows that are drawn by `candidates`


class Sampler:
    """Has its own random generator, and uses one random number for each token, so that the same
    seed gives the same text regardless of other jobs.
    """

    def __init__(
        self,
        job: Job,
        stop_token_ids: Sequence[int],
        pieces: Sequence[bytes],
        newline_ids: Sequence[int],
        rules: Sequence[Rule] = (),
    ) -> None:
        """`newline_ids`: tokens that end a line. `rules` limit the next token; a later rule
        overrides earlier rules.
        """
        s = self.sampling = job.sampling
        self.rules = rules
        self.num_logprobs = job.num_logprobs
        self.is_pair = bool(job.negative_prompt)
        self.num_drawn = 0
        self.error: BaseException | None = None  # the error of a rule
        self.is_heated = s.dynatemp_high > 0
        self.is_greedy = s.temperature < GREEDY_BELOW and not self.is_heated
        # A greedy draw skips the filters, which can't change the most probable token.
        self.is_filtered = not self.is_greedy or bool(s.temperature_last and s.xtc_probability)
        self.is_penalized = "penalize" in s.stages
        self.is_masked = bool("mask" in s.stages or job.min_new_tokens or job.healing)
        self.is_rare = not s.stages.isdisjoint(BY_ROW)
        self.is_few = self.is_filtered and not self.is_rare and 0 < s.top_k <= MAX_FEW
        self.temperature = 1.0
        if not (self.is_greedy or self.is_heated or s.temperature_last):
            self.temperature = s.temperature
        self.protected = [*stop_token_ids, *newline_ids]
        self.max_surprise = 2 * s.mirostat_tau  # bits
        self.is_excluding = False  # whether XTC applies to this draw
        self.token_ids: list[int] = []  # prompt and completion, if a penalty needs them
        if self.is_penalized or s.dry_multiplier:
            self.token_ids += job.prompt
        self._min_tokens = job.min_new_tokens
        self._stop_token_ids = list(stop_token_ids)
        self._first_ids = job.healing.token_ids if job.healing else ()
        # Unsigned: Python's generator takes the absolute value, so -1 would equal 1.
        self._random = random.Random(None if s.seed is None else s.seed % 2**64)
        self._bans = _Bans(s.banned_strings, pieces) if s.banned_strings else None
        self._is_breaker: np.ndarray | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the rules have determined the limits on the next token."""
        return all(rule.is_ready for rule in self.rules)

    def begin(self) -> bool:
        """Returns whether the next token may be drawn. If so, the caller must draw it."""
        if not self.is_ready:
            return False
        for rule in self.rules:
            rule.begin()
        return True

    def point(self) -> float:
        """The random number of the next draw, in [0, 1)."""
        if self.sampling.xtc_probability:
            self.is_excluding = self._random.random() < self.sampling.xtc_probability
        return 0.0 if self.is_greedy else self._random.random()

    @property
    def banned(self) -> Iterator[Sequence[int]]:
        """Yields lists of tokens that must not come next."""
        yield self.sampling.banned_token_ids
        if self.num_drawn < self._min_tokens:
            yield self._stop_token_ids
        if self._bans is not None:
            yield from self._bans.token_ids()

    @property
    def allowed(self) -> Iterator[Sequence[int]]:
        """Yields lists of tokens. Each list excludes all tokens that aren't in it."""
        if self.sampling.allowed_token_ids:
            yield self.sampling.allowed_token_ids
        if self.num_drawn == 0 and self._first_ids:
            yield self._first_ids

    def is_breaker(self, vocab_size: int) -> np.ndarray:
        """For each token, whether it ends repetitions for DRY."""
        if self._is_breaker is None:
            self._is_breaker = np.zeros(vocab_size, dtype=np.bool_)
            self._is_breaker[list(self.sampling.dry_breakers)] = True
        return self._is_breaker

    def note_logprob(self, logprob: float) -> None:
        """Note the drawn token's logprob among the remaining tokens, in nats, for mirostat."""
        surprise = -logprob / math.log(2)
        self.max_surprise -= self.sampling.mirostat_eta * (surprise - self.sampling.mirostat_tau)

    def accept(self, token_id: int) -> None:
        """Take the next token. The rules receive it through `obey` instead."""
        self.num_drawn += 1
        if self.token_ids:
            self.token_ids.append(token_id)
        if self._bans is not None:
            self._bans.note(token_id)

    def obey(self, token_id: int) -> bool:
        """Pass a token, which must not be an end token, to the rules. Returns whether no further
        token may follow.
        """
        for rule in self.rules:
            rule.accept(token_id)
        return any(rule.is_done for rule in self.rules)


class _Bans:
    """Masks tokens that would complete a banned string, so that no sent text is ever taken back."""

    def __init__(self, banned: Sequence[BannedString], pieces: Sequence[bytes]) -> None:
        self._banned = banned
        self._pieces = pieces
        self._tail = b""  # end of the completion, which may be part of a banned string
        self._max_tail = max(len(string.data) for string in banned) - 1

    def token_ids(self) -> Iterator[Sequence[int]]:
        for string in self._banned:
            yield string.containing
            for length in range(1, min(len(string.data) - 1, len(self._tail)) + 1):
                if string.completing[length] and self._tail.endswith(string.data[:length]):
                    yield string.completing[length]

    def note(self, token_id: int) -> None:
        tail = self._tail + (self._pieces[token_id] if token_id < len(self._pieces) else b"")
        self._tail = tail[-self._max_tail :] if self._max_tail else b""
