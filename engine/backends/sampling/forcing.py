"""Forces tokens if the model has not written a given text within a limit. Used on the engine
thread.
"""

from switchyard.engine.backends.sampling.rules import Only
from switchyard.engine.job import Forced


class Forcing:
    """A rule for one job that, for example, ends the model's reasoning at its limit."""

    is_ready = True
    is_done = False

    def __init__(self, forced: Forced, pieces: list[bytes]) -> None:
        self._forced = forced
        self._pieces = pieces
        self._watch = TextWatch(forced.unless_text)
        self._num_tokens = 0
        self._next = 0  # index into the forced tokens

    def limit(self) -> Only | None:
        is_on = self._next or (
            self._num_tokens >= self._forced.after_tokens and not self._watch.has_come
        )
        is_left = self._next < len(self._forced.token_ids)
        return Only(self._forced.token_ids[self._next]) if is_on and is_left else None

    def begin(self) -> None:
        pass

    def wait(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass

    def accept(self, token_id: int) -> None:
        if self.limit() is not None:
            self._next += 1
        self._num_tokens += 1
        self._watch.add(self._pieces[token_id])


class TextWatch:
    """Watches for a text in a completion."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self._tail = b""  # the end of the completion, which may be part of the text
        self.has_come = not text

    def add(self, piece: bytes) -> None:
        """Add the bytes of the next token."""
        seen = self._tail + piece
        self.has_come = self.has_come or self._text in seen
        self._tail = seen[len(seen) - min(len(self._text) - 1, len(seen)) :] if self._text else b""

    @property
    def begun(self) -> list[int]:
        """The lengths of the text's prefixes that the completion ends with, including 0."""
        lengths = range(len(self._tail) + 1)
        return [length for length in lengths if self._tail.endswith(self._text[:length])]
