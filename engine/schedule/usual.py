"""The typical length of each client's answers. Can be used on any thread."""

import threading
from collections import OrderedDict

from switchyard.engine.job import USUAL_TOKENS

WEIGHT = 1 / 8  # of the latest answer in the mean
MOST_MEANS = 4096  # maximum number kept; the least recently used is dropped


class UsualAnswers:
    """Moving averages of the number of new tokens in answers, by client and kind of request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the means
        self._means: OrderedDict[tuple[str, str], float] = OrderedDict()

    def of(self, client: str, kind: str) -> float:
        """Returns the number of tokens in a typical answer."""
        with self._lock:
            return self._means.get((client, kind), USUAL_TOKENS)

    def note(self, client: str, kind: str, new_tokens: int) -> None:
        """Add an answer that has ended by itself or at its limit. Takes the lock briefly."""
        with self._lock:
            mean = self._means.pop((client, kind), USUAL_TOKENS)
            self._means[client, kind] = mean + WEIGHT * (new_tokens - mean)
            if len(self._means) > MOST_MEANS:
                self._means.popitem(last=False)
