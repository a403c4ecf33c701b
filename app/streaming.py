"""Events to a response body as they come. Request threads.

Three framings, by the Accept header: server-sent events, JSON lines, bare text.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import flask
from werkzeug.datastructures import MIMEAccept

import engine
from app.body import dumps
from app.deadlines import TimedOut
from app.errors import describe
from app.reader import Reader

PROBE = 0.1  # seconds between writes to a client that may have left


class Framing(Protocol):
    mimetype: str
    heartbeat: bytes  # says nothing, keeps the connection open; empty: sends the status at least
    end: bytes

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        """A body, whose new text is `text`."""

    def error(self, body: dict[str, Any]) -> bytes:
        """The failure of a stream that has begun."""


class ServerSentEvents:
    mimetype = "text/event-stream"
    heartbeat = b": heartbeat\n\n"
    end = b"data: [DONE]\n\n"

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        return b"data: " + dumps(body) + b"\n\n"

    def error(self, body: dict[str, Any]) -> bytes:
        return self.frame(body, "")


class JsonLines:
    mimetype = "application/x-ndjson"
    heartbeat = b"\n"
    end = b""

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        return dumps(body) + b"\n"

    def error(self, body: dict[str, Any]) -> bytes:
        return self.frame(body, "")


class PlainText:
    mimetype = "text/plain"
    heartbeat = b""
    end = b""

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        return text.encode()

    def error(self, body: dict[str, Any]) -> bytes:
        return f"\n[error] {body['error']['message']}\n".encode()


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
        accept.quality("text/event-stream"), accept.quality("application/json")
    ):
        return best
    return ServerSentEvents()


# A wire format's bodies for some events, each with the new text in it.
Render = Callable[[Sequence[engine.JobEvent]], Iterable[tuple[dict[str, Any], str]]]


def stream_response(
    reader: Reader, render: Render, framing: Framing, heartbeat: float
) -> flask.Response:
    """A response that goes on until the jobs of `reader` have ended. `heartbeat` in seconds.

    Waits for the first event, so that a job that fails at once gets its own status; but not
    longer than a heartbeat, since by then the client shall see that it is being served. Raises
    the job's error, ClientGone or TimedOut.
    """
    try:
        first = _first_events(reader, heartbeat)
    except BaseException:
        reader.close()
        raise
    response = flask.Response(
        _writes(reader, first, render, framing, heartbeat), mimetype=framing.mimetype
    )
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"
    # Not a finally in _writes: if the client leaves before the first byte, that generator never
    # starts, and its finally never runs.
    response.call_on_close(reader.close)
    return response


def _first_events(reader: Reader, timeout: float) -> list[engine.JobEvent]:
    deadline = time.monotonic() + timeout
    events: list[engine.JobEvent] = []
    while True:
        for event in events:
            match event:
                case engine.Failed():
                    raise event.error
                case engine.Chunk() | engine.Finished():
                    return events
        left = deadline - time.monotonic()
        if left <= 0 or reader.is_half_closed:  # then a write must tell whether anybody is there
            return events
        events += reader.take(left)


def _writes(
    reader: Reader,
    events: list[engine.JobEvent],
    render: Render,
    framing: Framing,
    heartbeat: float,
) -> Iterator[bytes]:
    """All that has piled up, as one write."""
    last_write = -math.inf  # the client has waited for a heartbeat already if nothing is here
    while True:
        data = b"".join(framing.frame(body, text) for body, text in render(events))
        failed = next((event for event in events if isinstance(event, engine.Failed)), None)
        is_last = failed is not None or reader.is_finished
        if failed is not None:
            data += framing.error(describe(failed.error)[1])
        is_due = False
        if is_last:
            data += framing.end
        interval = min(heartbeat, PROBE) if reader.is_half_closed else heartbeat
        if not data and time.monotonic() - last_write >= interval:
            data, is_due = framing.heartbeat, True  # also if empty: that sends the headers
        if data or is_due:
            yield data
            last_write = time.monotonic()
        if is_last:
            return
        try:
            events = reader.take(interval)
        except TimedOut as error:
            reader.close()  # now, however long the client takes to read this
            yield framing.error(describe(error)[1]) + framing.end
            return


def raise_failure(events: Sequence[engine.JobEvent]) -> None:
    """Raise the error of the first job that has failed, if one has."""
    for event in events:
        if isinstance(event, engine.Failed):
            raise event.error
