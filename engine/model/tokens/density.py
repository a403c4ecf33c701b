"""Estimates the minimum number of tokens in a text without encoding it. Can be used on any
thread.
"""

from collections import deque

LONG = 2000  # minimum characters of a text to learn from
MEMORY = 16  # texts
# Tokens per character: the minimum that any text has on average, and the average of ordinary
# English. A guess never exceeds the latter; otherwise clients with dense texts would cause refusals
# for others.
LEAST, MOST = 1 / 16, 1 / 4


class Density:
    """The minimum number of tokens per character in the most recent long texts."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=MEMORY)

    def note(self, num_characters: int, num_tokens: int) -> None:
        if num_characters >= LONG:
            self._last.append(num_tokens / num_characters)

    def guess(self, num_characters: int) -> int:
        """The minimum number of tokens in texts of this total length, if they are like the most
        recent texts.
        """
        if len(self._last) < MEMORY:
            return int(num_characters * LEAST)
        return int(num_characters * max(min(*tuple(self._last), MOST), LEAST))
