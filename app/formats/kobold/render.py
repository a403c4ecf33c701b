"""Events to bodies of KoboldAI's API. Pure."""

from collections.abc import Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict  # which pydantic needs before Python 3.12

from switchyard import engine
from switchyard.app.delivery.framing import ServerSentEvents
from switchyard.app.delivery.progress import PromptProgress
from switchyard.app.delivery.submit import Choice
from switchyard.app.delivery.timings import TimingsBody
from switchyard.app.errors import describe
from switchyard.app.formats.shapes import FinishReason
from switchyard.app.http.body import dumps


class KoboldResult(TypedDict):
    text: str
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int


class KoboldBody(TypedDict):
    results: list[KoboldResult]
    timings: NotRequired[TimingsBody]


class KoboldChunk(TypedDict):
    token: str
    finish_reason: FinishReason | None
    timings: NotRequired[TimingsBody]
    prompt_progress: NotRequired[PromptProgress]


class KoboldRender:
    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return {
            "results": [
                {
                    "text": "".join(choice.texts),
                    "finish_reason": choice.finished.finish_reason,
                    "prompt_tokens": choice.finished.prompt_tokens,
                    "completion_tokens": choice.finished.new_tokens,
                }
                for choice in choices
                if choice.finished is not None
            ]
        }

    def delta(self, text: str) -> dict[str, Any]:
        return {"token": text, "finish_reason": None}

    def end(self, finished: engine.Finished) -> dict[str, Any]:
        return {"token": "", "finish_reason": finished.finish_reason}


class KoboldEvents(ServerSentEvents):
    """The last one's finish_reason tells the end."""

    end = b""

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        return b"event: message\ndata: " + dumps(body) + b"\n\n"

    def error(self, error: Exception) -> bytes:
        return b"event: error\ndata: " + dumps(describe(error)[1]) + b"\n\n"
