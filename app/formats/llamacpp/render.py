"""Renders events as bodies of llama.cpp's /completion. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from switchyard import engine
from switchyard.app.delivery.framing import Framing, data
from switchyard.app.delivery.render import Body, TextBody, Whole
from switchyard.app.delivery.timings import timings
from switchyard.app.formats.choices import ChoicesRender
from switchyard.app.parts.choice import Choice

LEAST = -9999.0  # stands for minus infinity, which JSON doesn't have


@dataclass(frozen=True, slots=True)
class Told:
    """The parts of bodies that don't come from events."""

    model: str
    settings: Mapping[str, Any]
    prompts: Sequence[str]  # the prompt of each choice
    piece: Callable[[int], bytes]  # returns the bytes that a token adds to the text
    max_tokens: int  # maximum number of tokens in a prompt and its completion together
    stop_strings: Sequence[str] = ()
    returns_tokens: bool = False
    has_probabilities: bool = False
    has_timings: bool = True
    fields: Sequence[str] = ()  # the fields that the answer contains; empty: all


class LlamaCppRender(ChoicesRender):
    tells_timings: ClassVar[bool] = True

    def __init__(self, choices: Mapping[str, Choice], told: Told) -> None:
        super().__init__(choices)
        self._told = told
        self._index = {identifier: i for i, identifier in enumerate(choices)}
        self._tokens: list[list[int]] = [[] for _ in choices]
        self._has_new_line = [False] * len(choices)

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[Body]:
        for event in events:
            index = self._index[event.identifier]
            match event:
                case engine.Chunk(text=text) if text or event.token_ids:
                    self._has_new_line[index] |= "\n" in text
                    more = self._probabilities(event.logprobs or ())
                    yield {**self._delta(index, text, event.token_ids), **more}, text
                case engine.Finished():
                    yield self._end(index, event), ""

    def text_body(self, identifier: str) -> TextBody | None:
        return None  # each body also contains the chunk's tokens

    def empty(self, index: int) -> dict[str, Any]:
        return self._delta(index, "", ())

    def add(self, events: Sequence[engine.JobEvent]) -> None:
        super().add(events)
        for event in events:
            if isinstance(event, engine.Chunk):
                index = self._index[event.identifier]
                self._tokens[index] += event.token_ids
                self._has_new_line[index] |= "\n" in event.text

    def whole(self) -> Whole:
        bodies = []
        for i, choice in enumerate(self.choices.values()):
            assert choice.finished is not None
            more = self._probabilities(choice.logprobs)
            tokens = self._tokens[i] if self._told.returns_tokens else []
            bodies.append(self._end(i, choice.finished, "".join(choice.texts), tokens, more))
        return bodies if len(bodies) > 1 else bodies[0]

    @staticmethod
    def _delta(index: int, text: str, token_ids: Sequence[int]) -> dict[str, Any]:
        return {"index": index, "content": text, "tokens": token_ids, "stop": False}

    def _end(
        self,
        index: int,
        finished: engine.Finished,
        text: str = "",
        tokens: Sequence[int] = (),
        more: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        told = self._told
        word = next((one for one in told.stop_strings if one == finished.stop_reason), "")
        body = {
            "index": index,
            "content": text,
            "tokens": tokens,
            "stop": True,
            "model": told.model,
            "prompt": told.prompts[index],
            "generation_settings": told.settings,
            "has_new_line": self._has_new_line[index],
            "stop_type": _stop_type(finished, word),
            "stopping_word": word,
            "tokens_predicted": finished.new_tokens,
            "tokens_evaluated": finished.prompt_tokens,
            "tokens_cached": finished.cached_tokens,
            "truncated": _is_truncated(finished, told.max_tokens),
            **(more or {}),
        }
        if told.has_timings:
            body["timings"] = timings([finished], 1)
        return _picked(body, told.fields) if told.fields else body

    def _probabilities(self, logprobs: Iterable[engine.TokenLogprob]) -> dict[str, Any]:
        if not self._told.has_probabilities:
            return {}
        told = [
            {
                **self._token(one.token_id, one.logprob),
                "top_logprobs": [self._token(*pair) for pair in one.top],
            }
            for one in logprobs
        ]
        return {"completion_probabilities": told}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        piece = self._told.piece(token_id)
        return {
            "id": token_id,
            "token": piece.decode("utf-8", "replace"),
            "bytes": list(piece),
            "logprob": max(logprob, LEAST),
        }


def _stop_type(finished: engine.Finished, word: str) -> str:
    match finished.finish_reason:
        case "length":
            return "limit"
        case "stop" if word:
            return "word"
        case "stop" if finished.stop_reason != "loop":
            return "eos"
        case _:
            return "none"


def _is_truncated(finished: engine.Finished, max_tokens: int) -> bool:
    """Whether the text ended because the context was full."""
    num_tokens = finished.prompt_tokens + finished.new_tokens
    return finished.finish_reason == "length" and num_tokens >= max_tokens


def _picked(body: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    found = {}
    for field in fields:
        value: Any = body
        for name in field.split("/"):
            if not isinstance(value, Mapping) or name not in value:
                break
            value = value[name]
        else:
            found[field] = value
    return found


EVENTS = Framing(data)  # no closing frame: `stop` in the last event marks the end
