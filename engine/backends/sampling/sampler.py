"""What the draws of one job depend on: what its Sampling asks for, and its tokens so far.

Engine thread. `draw.Draw` makes the draws, for all jobs together.
"""

import math
import random
from collections.abc import Iterator, Sequence

import numpy as np

from switchyard.engine.backends.sampling.rules import Rule
from switchyard.engine.job import Job
from switchyard.engine.sampling import BannedString, Stage

GREEDY_BELOW = 0.01  # temperature; the library's own border
BY_ROW: set[Stage] = {"shape", "filter row", "mirostat"}  # of a draw
MAX_FEW = 100  # tokens that a row may keep, by top_k, to be drawn from its candidates


class Sampler:
    """One draw a token, from a generator of its own, so that the same seed gives the same text in
    any company.
    """

    def __init__(
        self,
        job: Job,
        stop_token_ids: Sequence[int],
        pieces: Sequence[bytes],
        newline_ids: Sequence[int],
        rules: Sequence[Rule] = (),
    ) -> None:
        """`newline_ids`: tokens that are a line's end. `rules` say which tokens may come, a later
        one whatever those before it do.
        """
        s = self.sampling = job.sampling
        self.rules = rules
        self.num_logprobs = job.num_logprobs
        self.is_pair = bool(job.negative_prompt)
        self.num_drawn = 0
        self.error: BaseException | None = None  # that a rule has raised
        self.is_heated = s.dynatemp_high > 0
        self.is_greedy = s.temperature < GREEDY_BELOW and not self.is_heated
        # What can't change which token is the likeliest is left out where that one is taken.
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
        self.is_excluding = False  # whether XTC is done this time
        self.token_ids: list[int] = []  # prompt and completion, where they are asked for
        if self.is_penalized or s.dry_multiplier:
            self.token_ids += job.prompt
        self._min_tokens = job.min_new_tokens
        self._stop_token_ids = list(stop_token_ids)
        self._first_ids = job.healing.token_ids if job.healing else ()
        # Unsigned: Python's generator takes the absolute value, and -1 would be 1.
        self._random = random.Random(None if s.seed is None else s.seed % 2**64)
        self._bans = _Bans(s.banned_strings, pieces) if s.banned_strings else None
        self._is_breaker: np.ndarray | None = None

    def point(self) -> float:
        """In [0, 1), for the next draw."""
        if self.sampling.xtc_probability:
            self.is_excluding = self._random.random() < self.sampling.xtc_probability
        return 0.0 if self.is_greedy else self._random.random()

    @property
    def banned(self) -> Iterator[Sequence[int]]:
        """Tokens that may not come next."""
        yield self.sampling.banned_token_ids
        if self.num_drawn < self._min_tokens:
            yield self._stop_token_ids
        if self._bans is not None:
            yield from self._bans.token_ids()

    @property
    def allowed(self) -> Iterator[Sequence[int]]:
        """If any, no other may come next."""
        if self.sampling.allowed_token_ids:
            yield self.sampling.allowed_token_ids
        if self.num_drawn == 0 and self._first_ids:
            yield self._first_ids

    def is_breaker(self, vocab_size: int) -> np.ndarray:
        """Of each token, whether DRY begins anew behind it."""
        if self._is_breaker is None:
            self._is_breaker = np.zeros(vocab_size, dtype=np.bool_)
            self._is_breaker[list(self.sampling.dry_breakers)] = True
        return self._is_breaker

    def note_logprob(self, logprob: float) -> None:
        """Of the token drawn, among those that were left, in nats: for mirostat."""
        surprise = -logprob / math.log(2)
        self.max_surprise -= self.sampling.mirostat_eta * (surprise - self.sampling.mirostat_tau)

    def accept(self, token_id: int) -> None:
        """The next token. Not its rules': see `obey`."""
        self.num_drawn += 1
        if self.token_ids:
            self.token_ids.append(token_id)
        if self._bans is not None:
            self._bans.note(token_id)

    def obey(self, token_id: int) -> bool:
        """Show the rules a token that is no end; whether none may follow."""
        for rule in self.rules:
            rule.accept(token_id)
        return any(rule.is_done for rule in self.rules)


class _Bans:
    """Strings that must not come to be: a token that would complete one is masked, so nothing that
    was told is ever taken back.
    """

    def __init__(self, banned: Sequence[BannedString], pieces: Sequence[bytes]) -> None:
        self._banned = banned
        self._pieces = pieces
        self._tail = b""  # of the completion, as long as a banned string's beginning may be
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
