"""The protocol of a wire format's render, and templates (`Mould`) for frames that differ only in
their text. Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from switchyard import engine
from switchyard.app.http.body import dumps

MARK = "\x1etext\x1e"  # JSON escapes control characters, so nothing else in a frame contains them

Body = tuple[dict[str, Any], str]  # a body, and the new text in it
Whole = dict[str, Any] | list[dict[str, Any]]  # a list in formats that allow several answers
TextBody = Callable[[str], dict[str, Any]]


class Render(Protocol):
    """Makes the bodies of one answer in a wire format. To make a stream, call the render itself; to
    make a whole answer, call `add` and `whole`.
    """

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterable[Body]:
        """The bodies for some events in a stream. Without events, returns bodies that show a
        waiting client that it is being served.
        """

    def text_body(self, identifier: str) -> TextBody | None:
        """A function that makes the body for further text of this job; None if there is no such
        function yet.

        A render returns such a function as soon as each chunk of the job makes exactly one body,
        which depends only on the chunk's text. After that, these chunks may bypass the render.
        """

    def failed(self, error: Exception) -> Iterable[Body]:
        """The last bodies of a stream that fails after it has begun."""

    def add(self, events: Sequence[engine.JobEvent]) -> None:
        """Takes the next events of an answer that isn't streamed."""

    def whole(self) -> Whole:
        """The body of the whole answer, once all jobs have finished."""


class Wrapped:
    """The base class of renders that add to the bodies of another render, `inner`."""

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
    """Whether these events begin the stream. A failure before the stream begins determines the
    status of the response.
    """
    return not events or any(isinstance(e, engine.Chunk | engine.Finished) for e in events)


class Mould:
    """A frame that is split at its text. The bytes before and after the text are the same for all
    chunks.

    Making a whole body for each token would take several times as long.
    """

    __slots__ = ("_encode", "_head", "_tail")

    def __init__(self, frame: bytes) -> None:
        """`frame`: the frame for the text MARK."""
        self._encode: Callable[[str], bytes] = dumps if dumps(MARK) in frame else str.encode
        self._head, self._tail = frame.split(self._encode(MARK))

    def fill(self, text: str) -> bytes:
        return self._head + self._encode(text) + self._tail
