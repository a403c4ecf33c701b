"""Generates text on a Switchyard server, for the client mode of the extension."""

import json
from collections.abc import Sequence
from typing import Any

import flask

from switchyard import engine
from switchyard.app.config import Settings
from switchyard.app.exceptions import BadRequest
from switchyard.app.host.refusals import error_of, pause_of, refusal_of
from switchyard.app.host.text_stream import Ending, TextStream
from switchyard.app.host.upstream import Incoming, Upstream
from switchyard.app.host.wait import Wait
from switchyard.app.http.body import dumps
from switchyard.app.http.request_id import HEADER, request_id

# Settings that have an effect in a host application whose models run on a server.
CONCERNING = {
    *("queue_timeout", "total_timeout", "heartbeat", "body_timeout", "send_timeout"),
    *("max_body_bytes", "allowed_hosts"),
}


MAX_COUNTED = 64 << 20  # bytes of an answer that contains the tokens of a text


class RemoteSource:
    """Reads the events of one streamed response."""

    def __init__(self, answer: Incoming) -> None:
        self._answer = answer
        self._buffer = b""
        self._reason: engine.FinishReason | None = None
        self._usage: dict[str, int] = {}

    def read(self) -> tuple[Sequence[str], Ending | Exception | None]:
        pieces: list[str] = []
        while not pieces:
            data = self._answer.read()
            if not data:
                return [], self._end()
            *events, self._buffer = (self._buffer + data).split(b"\n\n")
            for event in events:
                piece = self._take(event)
                if isinstance(piece, Exception):
                    return pieces, piece
                if piece:
                    pieces.append(piece)
        return pieces, None

    def close(self) -> None:
        self._answer.close()

    def drop(self) -> None:
        self._answer.drop()

    def _take(self, event: bytes) -> str | Exception:
        """Extracts the text or the error from an event."""
        data = b"".join(line[6:] for line in event.split(b"\n") if line.startswith(b"data: "))
        if not data or data == b"[DONE]":
            return ""
        try:
            return self._read_body(json.loads(data))
        except (ValueError, TypeError, AttributeError) as reason:
            error = engine.Failure(
                "the models' server is not Switchyard: its events have an unexpected format"
            )
            error.__cause__ = reason
            return error

    def _read_body(self, body: Any) -> str | Exception:
        if "error" in body:
            return error_of(body["error"])
        self._usage |= body.get("usage") or {}
        text = ""
        for choice in body.get("choices", ()):
            self._reason = choice.get("finish_reason") or self._reason
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
        return text

    def _end(self) -> Ending:
        if self._reason is None:
            raise engine.Closed("the models' server ended its response early")
        counts = self._usage
        return Ending(
            self._reason, counts.get("prompt_tokens", 0), counts.get("completion_tokens", 0)
        )


class Remote:
    """The server that one application uses. The first request opens the connection, so the process
    may fork before then.
    """

    def __init__(self, url: str, key: str | None, settings: Settings) -> None:
        """Raises SettingsError."""
        self.upstream = Upstream(url, key)
        self._settings = settings
        self._is_closed = False

    @property
    def models(self) -> engine.Models:
        """Always raises RuntimeError, because this process has no models."""
        raise RuntimeError(f"the models run on {self.upstream.url}, not in this process")

    def start(self) -> None:
        self._is_closed = False

    def close(self, drain: float | None = None) -> bool:
        """Closes the connections. The server's models stay loaded."""
        self._is_closed = True
        self.upstream.close()
        return True

    def stream(self, body: dict[str, Any], is_patient: bool) -> TextStream:
        """Like `Switchyard.stream`. `body`: the body of an equivalent request."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        more = {"stream": True, "stream_options": {"include_usage": True}}
        return TextStream(RemoteSource(self._answer(path, {**body, **more})))

    def count(self, body: dict[str, Any]) -> int:
        """Like `Switchyard.count`. `body`: the body of an equivalent request."""
        answer = self._answer("/tokenize", body)
        try:
            return int(json.loads(answer.read_all(MAX_COUNTED))["count"])
        except (ValueError, LookupError, TypeError) as reason:
            raise engine.Failure(
                "the models' server is not Switchyard: its token count has an unexpected format"
            ) from reason

    def _answer(self, path: str, body: dict[str, Any]) -> Incoming:
        """A response with status 200.

        If the server has no room, the request is retried after the time in the response's
        Retry-After header. Retries end after the request's `timeout`, or else after `queue_timeout`
        seconds.
        """
        if self._is_closed:
            raise engine.Dead(
                "this application has closed its connection to the server: call"
                " Switchyard.start to open it again"
            )
        wait = Wait(self._settings, body.get("timeout"))
        while True:
            answer = self._ask(path, body, wait)
            if answer.status == 200:
                return answer
            error = refusal_of(answer)
            pause = pause_of(error)
            if pause is None or pause > wait.left or self.upstream.is_replaced:
                raise error
            wait.rest(pause)

    def _ask(self, path: str, body: dict[str, Any], wait: Wait) -> Incoming:
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        headers |= self.upstream.authorization
        if flask.has_request_context():
            headers[HEADER] = request_id()
        try:
            data = dumps({**body, **wait.timeout})
        except ValueError as reason:
            raise BadRequest(f"the parameters can't be sent as JSON: {reason}", None) from None
        return self.upstream.send("POST", path, headers, data, wait.look)
