"""Tokens that must come where the model doesn't get to a text in time. Engine thread."""

from switchyard.engine.backends.sampling.rules import Only
from switchyard.engine.backends.sampling.watch import Watch
from switchyard.engine.messages import Forced


class Forcing:
    """Of one job: ends its thoughts, say, once they are as long as they may be."""

    is_ready = True
    is_done = False

    def __init__(self, forced: Forced, pieces: list[bytes]) -> None:
        self._forced = forced
        self._pieces = pieces
        self._watch = Watch(forced.unless_text)
        self._num_tokens = 0
        self._next = 0  # of the forced tokens

    def limit(self) -> Only | None:
        is_on = self._next or (
            self._num_tokens >= self._forced.after_tokens and not self._watch.has_come
        )
        is_left = self._next < len(self._forced.token_ids)
        return Only(self._forced.token_ids[self._next]) if is_on and is_left else None

    def accept(self, token_id: int) -> None:
        if self.limit() is not None:
            self._next += 1
        self._num_tokens += 1
        self._watch.add(self._pieces[token_id])
