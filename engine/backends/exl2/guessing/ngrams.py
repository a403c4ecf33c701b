"""Guesses from a job's own text: the tokens that followed an earlier occurrence of its last three
tokens. Computes everything on the host.
"""

from collections.abc import Iterable, Sequence

SIZE = 3  # tokens of an n-gram
BITS = 21  # of a token id
WEIGHT = 0.125  # of a prediction in the rate


class Ngrams:
    """The n-grams of a text. They take about 150 bytes per token."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._after: dict[int, int] = {}  # place of the token after the last such n-gram
        self._next: int | None = None  # place of the token that is expected next
        self._rate = 0.5

    def __len__(self) -> int:
        """The number of tokens in the text."""
        return len(self._ids)

    @property
    def rate(self) -> float:
        """Returns the share of recent tokens that were the expected ones, or 0.0 if no token is
        expected now.
        """
        return 0.0 if self._next is None else self._rate

    def add(self, token_ids: Iterable[int], is_counted: bool = True) -> None:
        """Add tokens to the text. `is_counted`: whether these tokens count toward the rate."""
        ids, after = self._ids, self._after
        for token_id in token_ids:
            if is_counted and self._next is not None:
                self._rate += WEIGHT * ((ids[self._next] == token_id) - self._rate)
            if len(ids) >= SIZE:
                after[_key(ids)] = len(ids)
            ids.append(token_id)
            self._next = after.get(_key(ids)) if len(ids) >= SIZE else None

    def guess(self, number: int) -> list[int]:
        """Returns at most `number` expected tokens, or an empty list if no token is expected."""
        if self._next is None:
            return []
        found: list[int] = []
        for place in range(self._next, self._next + number):
            # A text that repeats itself continues with what was just guessed.
            known = place < len(self._ids)
            found.append(self._ids[place] if known else found[place - len(self._ids)])
        return found


def _key(ids: Sequence[int]) -> int:
    key = 0
    for token_id in ids[-SIZE:]:
        key = key << BITS | token_id
    return key
