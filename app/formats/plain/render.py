"""Renders events as bodies of /generate. Pure."""

from collections.abc import Mapping
from typing import Any, NotRequired

from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.delivery.framing import Framing, data
from switchyard.app.delivery.progress import PromptProgress
from switchyard.app.delivery.timings import TimingsBody
from switchyard.app.formats.shapes import FinishReason, Usage, ending, usage
from switchyard.app.formats.text.render import TextRender
from switchyard.app.parts.choice import Choice


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


class GenerateRender(TextRender):
    def __init__(self, choices: Mapping[str, Choice], identifier: str, model: str) -> None:
        super().__init__(choices)
        self._head = {"id": identifier, "model": model}

    def whole(self) -> dict[str, Any]:
        [choice] = self.choices.values()
        assert choice.finished is not None
        return {**self._head, "text": "".join(choice.texts), **self._end(choice.finished)}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _end(self, finished: engine.Finished) -> dict[str, Any]:
        return {**ending(finished), "usage": usage([finished], 1)}


def frame(body: dict[str, Any], text: str) -> bytes:
    """A server-sent event for a browser's EventSource: `message`, and finally `end` or `error`,
    after which the page closes the EventSource.
    """
    if "finish_reason" in body:
        return b"event: end\n" + data(body, text)
    return b"event: error\n" + data(body, text) if "error" in body else data(body, text)


EVENTS = Framing(frame)
