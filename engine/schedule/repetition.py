"""Does a text go round in circles? Pure: token ids come in one by one."""

from collections import deque
from collections.abc import Iterable

MAX_PERIOD = 64  # tokens that repeat
MIN_REPEATS = 4
MIN_TOKENS = 32  # of all repeats together: short ones are found in any table


class LoopDetector:
    """Finds out when the last tokens are one sequence, of at most 64, at least four times over.

    Costs a token as many steps as it occurs among the last 64.
    """

    def __init__(self, min_tokens: int = 0) -> None:
        """`min_tokens`: says nothing before so many."""
        self._min_tokens = min_tokens
        self._count = 0
        self._places: dict[int, deque[int]] = {}  # where a token id came, of late
        self._runs: dict[int, int] = {}  # period -> how many of the last tokens equal those before

    @property
    def count(self) -> int:
        """Tokens so far."""
        return self._count

    def add_all(self, token_ids: Iterable[int]) -> bool:
        """Whether that was so behind any of them. Counts all."""
        has_come_round = False
        for token_id in token_ids:
            has_come_round |= self.add(token_id)
        return has_come_round

    def add(self, token_id: int) -> bool:
        """Whether the text has come round once too often."""
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
