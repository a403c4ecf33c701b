"""Renders events as bodies of KoboldAI's API. Pure."""

from typing import Any, NotRequired

from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.delivery.framing import Framing, named
from switchyard.app.delivery.progress import PromptProgress
from switchyard.app.delivery.timings import TimingsBody
from switchyard.app.formats.shapes import FinishReason
from switchyard.app.formats.text.render import TextRender


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


class KoboldRender(TextRender):
    def whole(self) -> dict[str, Any]:
        return {
            "results": [
                {
                    "text": "".join(choice.texts),
                    "finish_reason": choice.finished.finish_reason,
                    "prompt_tokens": choice.finished.prompt_tokens,
                    "completion_tokens": choice.finished.new_tokens,
                }
                for choice in self.choices.values()
                if choice.finished is not None
            ]
        }

    def _delta(self, text: str) -> dict[str, Any]:
        return {"token": text, "finish_reason": None}

    def _end(self, finished: engine.Finished) -> dict[str, Any]:
        return {"token": "", "finish_reason": finished.finish_reason}


# There is no closing frame, because the `finish_reason` of the last event marks the end.
EVENTS = Framing(named(lambda body: "error" if "error" in body else "message"))
