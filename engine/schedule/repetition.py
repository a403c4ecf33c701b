"""Detects a text that repeats itself, one token id at a time. Does no I/O."""

from collections import deque
from collections.abc import Iterable

MAX_PERIOD = 64  # tokens of one repeat
MIN_REPEATS = 4
MIN_TOKENS = 32  # of all repeats together: any table has short repeats


class LoopDetector:
    """Detects when the last tokens repeat a sequence of at most 64 tokens at least four times. Each
    token takes one step for each of its occurrences among the last 64 tokens.
    """

    def __init__(self, min_tokens: int = 0) -> None:
        """`min_tokens`: the number of tokens before which no loop counts."""
        self._min_tokens = min_tokens
        self._count = 0
        self._places: dict[int, deque[int]] = {}  # recent places of each token id
        # Period -> number of last tokens that equal those one period before
        self._runs: dict[int, int] = {}

    @property
    def count(self) -> int:
        """The number of tokens so far."""
        return self._count

    def add_all(self, token_ids: Iterable[int]) -> bool:
        """Adds all of the tokens. Returns whether a loop was complete after any of them."""
        has_come_round = False
        for token_id in token_ids:
            has_come_round |= self.add(token_id)
        return has_come_round

    def add(self, token_id: int) -> bool:
        """Returns whether the text has repeated itself often enough."""
        here = self._count
        self._count += 1
        places = self._places.setdefault(token_id, deque(maxlen=MAX_PERIOD))
        while places and places[0] < here - MAX_PERIOD:
            places.popleft()
        self._runs = {here - place: self._runs.get(here - place, 0) + 1 for place in places}
        places.append(here)
        return self._count >= self._min_tokens and any(
            run + period >= max(MIN_REPEATS * period, MIN_TOKENS)
            for period, run in self._runs.items()
        )
