"""Events to bodies of llama.cpp's /completion. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict  # which pydantic needs before Python 3.12

from switchyard import engine
from switchyard.app.delivery.framing import Framing, data
from switchyard.app.delivery.progress import PromptProgress
from switchyard.app.delivery.timings import TimingsBody
from switchyard.app.formats.text.render import TextRender
from switchyard.app.parts.choice import Choice


class LlamaCppChunk(TypedDict):
    index: int
    content: str
    stop: Literal[False]
    prompt_progress: NotRequired[PromptProgress]


class LlamaCppBody(TypedDict):
    """Also the last of a stream."""

    index: int
    content: str
    stop: Literal[True]
    model: str
    stop_type: Literal["eos", "limit", "word", "none"]
    stopping_word: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: Literal[False]
    timings: NotRequired[TimingsBody]


class LlamaCppRender(TextRender):
    def __init__(
        self, choices: Mapping[str, Choice], model: str, stop_strings: Sequence[str]
    ) -> None:
        super().__init__(choices)
        self._model = model
        self._stop_strings = stop_strings

    def whole(self) -> dict[str, Any]:
        [choice] = self.choices.values()
        assert choice.finished is not None
        return {**self._end(choice.finished), "content": "".join(choice.texts)}

    def _delta(self, text: str) -> dict[str, Any]:
        return {"index": 0, "content": text, "stop": False}

    def _end(self, finished: engine.Finished) -> dict[str, Any]:
        word = finished.stop_reason if finished.stop_reason in self._stop_strings else ""
        match finished.finish_reason:
            case "length":
                stop_type = "limit"
            case "stop" if word:
                stop_type = "word"
            case "stop" if finished.stop_reason != "loop":
                stop_type = "eos"
            case _:
                stop_type = "none"
        return {
            "index": 0,
            "content": "",
            "stop": True,
            "model": self._model,
            "stop_type": stop_type,
            "stopping_word": word,
            "tokens_predicted": finished.new_tokens,
            "tokens_evaluated": finished.prompt_tokens,
            "tokens_cached": finished.cached_tokens,
            "truncated": False,
        }


EVENTS = Framing(data)  # the last one's `stop` tells the end
