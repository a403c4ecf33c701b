"""Events to bodies of /generate. Pure."""

from collections.abc import Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict  # which pydantic needs before Python 3.12

from switchyard import engine
from switchyard.app.delivery.framing import ServerSentEvents
from switchyard.app.delivery.progress import PromptProgress
from switchyard.app.delivery.submit import Choice
from switchyard.app.delivery.timings import TimingsBody
from switchyard.app.errors import describe
from switchyard.app.formats.shapes import FinishReason, Usage, ending, usage
from switchyard.app.http.body import dumps


class GenerateEnd(TypedDict):
    finish_reason: FinishReason
    stop_reason: NotRequired[str | int]
    usage: Usage
    timings: NotRequired[TimingsBody]


class GenerateBody(GenerateEnd):
    id: str
    model: str
    text: str


class GenerateChunk(TypedDict):
    text: str
    prompt_progress: NotRequired[PromptProgress]


class GenerateRender:
    def __init__(self, identifier: str, model: str) -> None:
        self._head = {"id": identifier, "model": model}

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        [choice] = choices
        assert choice.finished is not None
        return {**self._head, "text": "".join(choice.texts), **self.end(choice.finished)}

    def delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def end(self, finished: engine.Finished) -> dict[str, Any]:
        return {**ending(finished), "usage": usage([finished], 1)}


class NamedEvents(ServerSentEvents):
    """For a browser's EventSource, which must learn of the end: events `message`, and at last one
    `end` or `error`. It is given an id, and sends that when it connects again.
    """

    end = b""

    def __init__(self, identifier: str | None) -> None:
        self._id = f"id: {identifier}\n".encode() if identifier else b""

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        return self._event(b"event: end\n" if "finish_reason" in body else b"", body)

    def error(self, error: Exception) -> bytes:
        return self._event(b"event: error\n", describe(error)[1])

    def _event(self, name: bytes, body: dict[str, Any]) -> bytes:
        identifier, self._id = self._id, b""  # it stays until there is another
        return identifier + name + b"data: " + dumps(body) + b"\n\n"
