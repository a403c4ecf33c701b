"""Framings of streams, which turn bodies into frames. Runs on request threads and the sender's
thread.

The Accept header selects one of three framings: server-sent events, JSON lines, bare text.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from werkzeug.datastructures import MIMEAccept

from switchyard import engine
from switchyard.app.delivery.progress import tell
from switchyard.app.delivery.render import MARK, Mould, Render
from switchyard.app.http.body import dumps

EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Framing:
    """The bytes of a stream: its frames, the bytes before and after them, and its heartbeat."""

    frame: Callable[[dict[str, Any], str], bytes]  # makes a frame from a body and its new text
    mimetype: str = EVENTS
    opening: bytes = b""  # bytes before the first frame
    end: bytes = b""
    # Keeps the connection open, and has no meaning. If empty, only the response's headers are
    # sent.
    heartbeat: bytes = b": heartbeat\n\n"


def data(body: dict[str, Any], text: str) -> bytes:
    """Makes a server-sent event without a name."""
    return b"data: " + dumps(body) + b"\n\n"


def named(name: Callable[[dict[str, Any]], str]) -> Callable[[dict[str, Any], str], bytes]:
    """Makes server-sent events, each with the name that `name` returns for its body."""
    return lambda body, text: b"event: " + name(body).encode() + b"\n" + data(body, text)


SERVER_SENT_EVENTS = Framing(data, end=b"data: [DONE]\n\n")
JSON_LINES = Framing(
    lambda body, text: dumps(body) + b"\n", "application/x-ndjson", heartbeat=b"\n"
)
PLAIN_TEXT = Framing(lambda body, text: text.encode(), "text/plain", heartbeat=b"")


def media_types(body: Any) -> dict[str, Any]:
    """The media types of all framings, each with its type of frame, for a route's contract."""
    return {
        SERVER_SENT_EVENTS.mimetype: body,
        JSON_LINES.mimetype: body,
        PLAIN_TEXT.mimetype: str,
    }


def choose_framing(accept: MIMEAccept) -> Framing:
    """Server-sent events, unless the Accept header ranks another framing above both them and JSON.

    Many clients send `application/json, text/plain, */*` by default, without expressing a
    preference.
    """
    best = max(JSON_LINES, PLAIN_TEXT, key=lambda framing: accept.quality(framing.mimetype))
    if accept.quality(best.mimetype) > max(
        accept.quality(EVENTS), accept.quality("application/json")
    ):
        return best
    return SERVER_SENT_EVENTS


class StreamWriter:
    """Writes the frames of a stream. A stream that clients can resume has numbered frames."""

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
        "_opening",
        "_render",
        "comment",
        "heartbeat",
        "is_numbered",
        "mimetype",
    )

    def __init__(
        self, render: Render, framing: Framing, identifier: str | None, heartbeat: float
    ) -> None:
        """`identifier`: the response's identifier, used to number the frames; if None, frames have
        no numbers. `heartbeat`: seconds after which a stream without events writes its first frame.
        """
        self.mimetype = framing.mimetype
        self.heartbeat = framing.heartbeat
        self.is_numbered = identifier is not None
        self._render = render
        self._framing = framing
        self._opening = framing.opening
        self._identifier = identifier
        self._is_silent_until = time.monotonic() + heartbeat
        self._moulds: dict[str, Mould] = {}  # moulds by job
        self._job = ""  # the job of the last text; `_mould` is its mould
        self._mould: Mould | None = None
        self._count = 0
        self._has_comments = self.heartbeat.startswith(b":")  # otherwise the heartbeat is an event
        self.comment = b""

    def write(self, events: Sequence[engine.JobEvent]) -> list[bytes]:
        if not events and time.monotonic() < self._is_silent_until:
            return []
        if frames := self._cast(events):
            self.comment = b""
            return frames if self._identifier is None else self._number(frames)
        frame = self._framing.frame
        frames = [frame(body, text) for body, text in self._render(events)]
        if frames and events:
            self._learn(events[-1])
        if self._has_comments and events:
            progress = tell(events[-1])
            self.comment = f": {progress}\n\n".encode() if progress else b""
        return self._number(frames)

    def end(self) -> list[bytes]:
        return self._number([self._framing.end])

    def fail(self, error: Exception) -> list[bytes]:
        frame = self._framing.frame
        failed = b"".join(frame(body, text) for body, text in self._render.failed(error))
        return self._number([failed, self._framing.end])

    def _cast(self, events: Sequence[engine.JobEvent]) -> list[bytes]:
        """The frames of the texts if there is a mould for each text; otherwise an empty list."""
        frames = []
        for event in events:
            if event.identifier != self._job:
                self._job, self._mould = event.identifier, self._moulds.get(event.identifier)
            if self._mould is None or not isinstance(event, engine.Chunk) or not event.text:
                return []
            frames.append(self._mould.fill(event.text))
        return frames

    def _learn(self, event: engine.JobEvent) -> None:
        """Makes a mould for this text's job as soon as the render allows one."""
        identifier = event.identifier
        if isinstance(event, engine.Chunk) and identifier not in self._moulds:
            body = self._render.text_body(identifier)
            if body is not None:
                self._mould = Mould(self._framing.frame(body(MARK), MARK))
                self._job, self._moulds[identifier] = identifier, self._mould

    def _number(self, frames: list[bytes]) -> list[bytes]:
        if not all(frames):
            frames = [frame for frame in frames if frame]
        if frames and self._opening:
            frames[0], self._opening = self._opening + frames[0], b""
        if self._identifier is None:
            return frames
        first = self._count + 1
        self._count += len(frames)
        prefix = f"id: {self._identifier}:"
        return [f"{prefix}{i}\n".encode() + frame for i, frame in enumerate(frames, first)]
