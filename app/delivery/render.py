"""What a wire format makes of events, and frames that differ in their text alone. Pure."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from switchyard import engine
from switchyard.app.http.body import dumps

MARK = "\x1etext\x1e"  # nothing else in a frame has these characters; in JSON they are escaped

Body = tuple[dict[str, Any], str]  # with the new text in it
Whole = dict[str, Any] | list[dict[str, Any]]  # a list where there may be several answers
TextBody = Callable[[str], dict[str, Any]]


class Render(Protocol):
    """A wire format's bodies of one answer: those of a stream as its events come, or the whole."""

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterable[Body]:
        """Of some events. Of none: what shows that it is served, for a client that has waited for
        so long that it shall see that.
        """

    def text_body(self, identifier: str) -> TextBody | None:
        """What makes the body of more text of this job, once each of its chunks is a body of its
        own, of its text alone, and no other is told of it; None as long as that isn't certain.
        """

    def failed(self, error: Exception) -> Iterable[Body]:
        """What a stream that has begun ends with where it fails."""

    def add(self, events: Sequence[engine.JobEvent]) -> None:
        """Take events of an answer that isn't streamed."""

    def whole(self) -> Whole:
        """Its body, once all jobs have finished."""


class Wrapped:
    """A render that another adds something to."""

    def __init__(self, render: Render) -> None:
        self.inner = render

    def text_body(self, identifier: str) -> TextBody | None:
        return self.inner.text_body(identifier)

    def failed(self, error: Exception) -> Iterable[Body]:
        return self.inner.failed(error)

    def add(self, events: Sequence[engine.JobEvent]) -> None:
        self.inner.add(events)

    def whole(self) -> Whole:
        return self.inner.whole()


def begins(events: Sequence[engine.JobEvent]) -> bool:
    """Whether a stream begins with these at the latest. Until then a failure has its own status."""
    return not events or any(isinstance(e, engine.Chunk | engine.Finished) for e in events)


class Mould:
    """What stands before and behind the text, as a frame that was made once has it: to put a body
    together anew for each token takes several times as long.
    """

    __slots__ = ("_encode", "_head", "_tail")

    def __init__(self, frame: bytes) -> None:
        """`frame` of a text that is MARK."""
        self._encode: Callable[[str], bytes] = dumps if dumps(MARK) in frame else str.encode
        self._head, self._tail = frame.split(self._encode(MARK))

    def fill(self, text: str) -> bytes:
        return self._head + self._encode(text) + self._tail
