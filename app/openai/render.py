"""Events to response bodies. Pure: plain dictionaries, in the shapes of OpenAI's API."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import engine
from app.generation import Choice


@dataclass(frozen=True, slots=True)
class Head:
    """What every body of one response says of itself."""

    identifier: str
    created: int  # Unix seconds
    model: str
    fingerprint: str  # of what answers: the same seed means the same text only with the same one


def usage(
    finished: Sequence[engine.Finished], num_choices: int, reasoning_tokens: int = 0
) -> dict[str, Any]:
    """Of all choices; those of one prompt, `num_choices`, follow each other and count it once."""
    prompt_tokens = sum(f.prompt_tokens for f in finished[::num_choices])
    cached_tokens = sum(f.cached_tokens for f in finished[::num_choices])
    completion_tokens = sum(f.new_tokens for f in finished)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


class Render(Protocol):
    """One of the two endpoints' shapes. `index` is the choice's."""

    head: Head

    @property
    def reasoning_tokens(self) -> int:
        """Of all choices, so far."""

    def whole(self, choices: Sequence[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        """The body of a response that isn't streamed."""

    def opening(self, index: int) -> list[tuple[dict[str, Any], str]]:
        """What comes before the choice's first new text, with the text in it."""

    def more(
        self, index: int, event: engine.Chunk | engine.Finished
    ) -> Iterator[tuple[dict[str, Any], str]]:
        """More of a choice, or its end, each with the text in it."""

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The body behind all choices, when usage was asked for."""


class CompletionRender:
    reasoning_tokens = 0

    def __init__(self, head: Head, prompts: Sequence[str]) -> None:
        """`prompts`: of each choice, the text to begin with; empty unless it was asked for."""
        self.head = head
        self._prompts = prompts

    def whole(self, choices: Sequence[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        return self._body(
            [
                self._choice(i, self._prompts[i] + "".join(choice.texts), choice.finished)
                for i, choice in enumerate(choices)
            ],
            usage=usage,
        )

    def opening(self, index: int) -> list[tuple[dict[str, Any], str]]:
        prompt = self._prompts[index]
        return [(self._body([self._choice(index, prompt, None)]), prompt)] if prompt else []

    def more(
        self, index: int, event: engine.Chunk | engine.Finished
    ) -> Iterator[tuple[dict[str, Any], str]]:
        match event:
            case engine.Chunk(text=text) if text:
                yield self._body([self._choice(index, text, None)]), text
            case engine.Finished():
                yield self._body([self._choice(index, "", event)]), ""

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        return self._body([], usage=usage)

    def _choice(self, index: int, text: str, finished: engine.Finished | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, **ending(finished)}

    def _body(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**start(self.head, "text_completion"), "choices": choices, **more}


class StreamRender:
    """Bodies of a stream as its events come, each with the new text in it."""

    def __init__(
        self, render: Render, identifiers: Sequence[str], num_choices: int, include_usage: bool
    ) -> None:
        """`num_choices` of each prompt; `identifiers` of all, in order."""
        self._render = render
        self._index = {identifier: i for i, identifier in enumerate(identifiers)}
        self._num_choices = num_choices
        self._include_usage = include_usage
        self._finished: dict[int, engine.Finished] = {}
        self._is_open = False

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[tuple[dict[str, Any], str]]:
        for body, text in self._bodies(events):
            yield ({**body, "usage": None} if self._include_usage else body), text
        if self._include_usage and len(self._finished) == len(self._index):
            finished = [self._finished[i] for i in range(len(self._index))]
            tokens = usage(finished, self._num_choices, self._render.reasoning_tokens)
            yield self._render.usage(tokens), ""

    def _bodies(self, events: Sequence[engine.JobEvent]) -> Iterator[tuple[dict[str, Any], str]]:
        if not self._is_open and any(isinstance(e, engine.Chunk | engine.Finished) for e in events):
            self._is_open = True
            for index in range(len(self._index)):
                yield from self._render.opening(index)
        for event in events:
            index = self._index[event.identifier]
            match event:
                case engine.Chunk():
                    yield from self._render.more(index, event)
                case engine.Finished():
                    self._finished[index] = event
                    yield from self._render.more(index, event)


def model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "switchyard"}


def models(data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": list(data)}


def start(head: Head, kind: str) -> dict[str, Any]:
    return {
        "id": head.identifier,
        "object": kind,
        "created": head.created,
        "model": head.model,
    }


def ending(finished: engine.Finished | None) -> dict[str, Any]:
    """What a choice says of its end, or that there is none yet."""
    if finished is None:
        return {"finish_reason": None}
    reason = {} if finished.stop_reason is None else {"stop_reason": finished.stop_reason}
    return {"finish_reason": finished.finish_reason, **reason}
