"""Events to a response body as they come. Request threads.

Three framings, by the Accept header: server-sent events, JSON lines, bare text.
"""

import time
from collections.abc import Sequence
from typing import Any, Protocol

from werkzeug.datastructures import MIMEAccept

from switchyard import engine
from switchyard.app.delivery.progress import tell
from switchyard.app.delivery.render import MARK, Mould, Render
from switchyard.app.errors import describe
from switchyard.app.http.body import dumps

EVENTS = "text/event-stream"


class Framing(Protocol):
    mimetype: str
    heartbeat: bytes  # says nothing, keeps the connection open; empty: sends the status at least
    end: bytes

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        """A body, whose new text is `text`."""

    def error(self, error: Exception) -> bytes:
        """The failure of a stream that has begun."""


class ServerSentEvents:
    mimetype = EVENTS
    heartbeat = b": heartbeat\n\n"
    end = b"data: [DONE]\n\n"

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        return b"data: " + dumps(body) + b"\n\n"

    def error(self, error: Exception) -> bytes:
        return self.frame(describe(error)[1], "")


SERVER_SENT_EVENTS = ServerSentEvents()


class JsonLines:
    mimetype = "application/x-ndjson"
    heartbeat = b"\n"
    end = b""

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        return dumps(body) + b"\n"

    def error(self, error: Exception) -> bytes:
        return self.frame(describe(error)[1], "")


class PlainText:
    mimetype = "text/plain"
    heartbeat = b""
    end = b""

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        return text.encode()

    def error(self, error: Exception) -> bytes:
        message = describe(error)[1]["error"]["message"]
        return f"\n[error] {message}\n".encode()


def media_types(body: Any) -> dict[str, Any]:
    """Of all framings, with the type of what each frame says, for the contract of a route."""
    return {
        ServerSentEvents.mimetype: body,
        JsonLines.mimetype: body,
        PlainText.mimetype: str,
    }


def choose_framing(accept: MIMEAccept) -> Framing:
    """Server-sent events, unless the header prefers one of the others to them: many clients send
    `application/json, text/plain, */*` without a thought.
    """
    framings: list[Framing] = [JsonLines(), PlainText()]
    best = max(framings, key=lambda framing: accept.quality(framing.mimetype))
    if accept.quality(best.mimetype) > max(
        accept.quality(EVENTS), accept.quality("application/json")
    ):
        return best
    return SERVER_SENT_EVENTS


class StreamWriter:
    """Frames as bodies come; numbered where a client may ask for what is behind one of them."""

    is_streamed = True

    __slots__ = (
        "_count",
        "_framing",
        "_has_comments",
        "_identifier",
        "_is_silent_until",
        "_job",
        "_mould",
        "_moulds",
        "_render",
        "comment",
        "heartbeat",
        "is_numbered",
        "mimetype",
    )

    def __init__(
        self, render: Render, framing: Framing, identifier: str | None, heartbeat: float
    ) -> None:
        """`identifier`: the response's, if its frames are events with a number each. `heartbeat`:
        seconds for which nothing is written as long as there is nothing to tell.
        """
        self.mimetype = framing.mimetype
        self.heartbeat = framing.heartbeat
        self.is_numbered = identifier is not None
        self._render = render
        self._framing = framing
        self._identifier = identifier
        self._is_silent_until = time.monotonic() + heartbeat
        self._moulds: dict[str, Mould] = {}  # by job
        self._job = ""  # the one whose text came last, and its mould
        self._mould: Mould | None = None
        self._count = 0
        self._has_comments = self.heartbeat.startswith(b":")  # else it is an event
        self.comment = b""

    def write(self, events: Sequence[engine.JobEvent]) -> list[bytes]:
        if not events and time.monotonic() < self._is_silent_until:
            return []
        if frames := self._cast(events):
            self.comment = b""
            return frames if self._identifier is None else self._number(frames)
        frame = self._framing.frame
        frames = [frame(body, text) for body, text in self._render(events)]
        if frames and events:  # a framing may write the first of all in another way
            self._learn(events[-1])
        if self._has_comments and events:
            progress = tell(events[-1])
            self.comment = f": {progress}\n\n".encode() if progress else b""
        return self._number(frames)

    def end(self) -> list[bytes]:
        return self._number([self._framing.end])

    def fail(self, error: Exception) -> list[bytes]:
        return self._number([self._framing.error(error), self._framing.end])

    def _cast(self, events: Sequence[engine.JobEvent]) -> list[bytes]:
        """The frames of texts that all have a mould; else none."""
        frames = []
        for event in events:
            if event.identifier != self._job:
                self._job, self._mould = event.identifier, self._moulds.get(event.identifier)
            if self._mould is None or not isinstance(event, engine.Chunk) or not event.text:
                return []
            frames.append(self._mould.fill(event.text))
        return frames

    def _learn(self, event: engine.JobEvent) -> None:
        """Make a mould if the job of this text has come to where it may have one."""
        identifier = event.identifier
        if isinstance(event, engine.Chunk) and identifier not in self._moulds:
            body = self._render.text_body(identifier)
            if body is not None:
                self._mould = Mould(self._framing.frame(body(MARK), MARK))
                self._job, self._moulds[identifier] = identifier, self._mould

    def _number(self, frames: list[bytes]) -> list[bytes]:
        if not all(frames):
            frames = [frame for frame in frames if frame]
        if self._identifier is None:
            return frames
        first = self._count + 1
        self._count += len(frames)
        prefix = f"id: {self._identifier}:"
        return [f"{prefix}{i}\n".encode() + frame for i, frame in enumerate(frames, first)]


def raise_failure(events: Sequence[engine.JobEvent]) -> None:
    """Raise the error of the first job that has failed, if one has."""
    for event in events:
        if isinstance(event, engine.Failed):
            raise event.error
