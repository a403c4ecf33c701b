"""Events to response bodies. Pure: plain dictionaries, in the shapes of OpenAI's API."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from switchyard import engine
from switchyard.app.delivery.render import TextBody
from switchyard.app.delivery.submit import Choice
from switchyard.app.formats.openai.logprobs import CompletionLogprobs, TokenNames
from switchyard.app.formats.shapes import ending, usage


@dataclass(frozen=True, slots=True)
class Head:
    """What every body of one response says of itself."""

    identifier: str
    created: int  # Unix seconds
    model: str
    fingerprint: str  # of what answers: the same seed means the same text only with the same one


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt, as a completion begins with it."""

    text: str
    token_ids: tuple[int, ...]


PromptLogprobs = Sequence[engine.TokenLogprob | None]  # of a prompt's tokens; none if not asked for


class Render(Protocol):
    """One of the two endpoints' shapes. `index` is the choice's."""

    head: Head

    @property
    def reasoning_tokens(self) -> int:
        """Of all choices, so far."""

    def whole(self, choices: Sequence[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        """The body of a response that isn't streamed."""

    def opening(self, index: int, logprobs: PromptLogprobs) -> Iterator[tuple[dict[str, Any], str]]:
        """What comes before the choice's first new text, with the text in it. `logprobs` of the
        prompt, where they were asked for.
        """

    def more(
        self, index: int, event: engine.Chunk | engine.Finished
    ) -> Iterator[tuple[dict[str, Any], str]]:
        """More of a choice, or its end, each with the text in it."""

    def text_body(self, index: int) -> TextBody | None:
        """As a stream's `Render` does, of a choice that has begun."""

    def empty(self, index: int) -> dict[str, Any]:
        """A body of a choice that says nothing."""

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The body behind all choices, when usage was asked for."""


class CompletionRender:
    reasoning_tokens = 0

    def __init__(self, head: Head, echoes: Sequence[Echo | None], names: TokenNames | None) -> None:
        """`echoes`: of each choice, with what it begins. `names`: for logprobs, if asked for."""
        self.head = head
        self._echoes = echoes
        self._logprobs = [CompletionLogprobs(names) for _ in echoes] if names else None

    def whole(self, choices: Sequence[Choice], usage: dict[str, Any]) -> dict[str, Any]:
        bodies = []
        for i, choice in enumerate(choices):
            text = "".join((self._prompt(i), *choice.texts))
            stop_token = choice.finished and choice.finished.stop_token
            logprobs = [*choice.logprobs, *([stop_token] if stop_token else [])]
            shown = self._show(i, logprobs, choice.prompt_logprobs)
            bodies.append(self._choice(i, text, choice.finished, shown))
        return self._body(bodies, usage=usage)

    def opening(self, index: int, logprobs: PromptLogprobs) -> Iterator[tuple[dict[str, Any], str]]:
        if prompt := self._prompt(index):
            shown = self._show(index, (), logprobs)
            yield self._text(index, prompt, shown), prompt

    def more(
        self, index: int, event: engine.Chunk | engine.Finished
    ) -> Iterator[tuple[dict[str, Any], str]]:
        match event:
            case engine.Chunk(text=text, logprobs=logprobs) if text or logprobs:
                shown = self._show(index, logprobs or ())
                yield self._text(index, text, shown), text
            case engine.Finished(stop_token=stop_token):
                shown = self._show(index, [stop_token]) if stop_token else None
                yield self._body([self._choice(index, "", event, shown)]), ""

    def text_body(self, index: int) -> TextBody | None:
        return None if self._logprobs else partial(self._text, index)

    def empty(self, index: int) -> dict[str, Any]:
        return self._text(index, "")

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        return self._body([], usage=usage)

    def _prompt(self, index: int) -> str:
        echo = self._echoes[index]
        return "" if echo is None else echo.text

    def _text(
        self, index: int, text: str, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return self._body([self._choice(index, text, None, logprobs)])

    def _show(
        self,
        index: int,
        logprobs: Sequence[engine.TokenLogprob],
        prompt_logprobs: PromptLogprobs = (),
    ) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        shown, echo = self._logprobs[index], self._echoes[index]
        if prompt_logprobs and echo is not None:
            shown.add_prompt(echo.token_ids, echo.text, prompt_logprobs)
        shown.add(logprobs)
        return shown.take()

    @staticmethod
    def _choice(
        index: int,
        text: str,
        finished: engine.Finished | None,
        logprobs: dict[str, Any] | None,
    ) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, **ending(finished)}

    def _body(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**start(self.head, "text_completion"), "choices": choices, **more}


class StreamRender:
    """Bodies of a stream as its events come, each with the new text in it."""

    def __init__(
        self, render: Render, identifiers: Sequence[str], num_jobs: int, include_usage: bool
    ) -> None:
        """`num_jobs` of each prompt; `identifiers` of all, in order."""
        self._render = render
        self._index = {identifier: i for i, identifier in enumerate(identifiers)}
        self._num_jobs = num_jobs
        self._include_usage = include_usage
        self._finished: dict[int, engine.Finished] = {}
        self._open: set[int] = set()  # choices that have begun

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[tuple[dict[str, Any], str]]:
        for body, text in self._bodies(events):
            yield self._with_usage(body), text
        if self._include_usage and len(self._finished) == len(self._index):
            finished = [self._finished[i] for i in range(len(self._index))]
            tokens = usage(finished, self._num_jobs, self._render.reasoning_tokens)
            yield self._render.usage(tokens), ""

    def text_body(self, identifier: str) -> TextBody | None:
        body = self._render.text_body(self._index[identifier])
        return body and (lambda text: self._with_usage(body(text)))

    def _with_usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """There is none before the end."""
        return {**body, "usage": None} if self._include_usage else body

    def _bodies(self, events: Sequence[engine.JobEvent]) -> Iterator[tuple[dict[str, Any], str]]:
        for event in events:
            index = self._index[event.identifier]
            if index not in self._open and isinstance(
                event, engine.PromptLogprobs | engine.Chunk | engine.Finished
            ):
                self._open.add(index)
                logprobs = event.logprobs if isinstance(event, engine.PromptLogprobs) else ()
                yield from self._render.opening(index, logprobs)
            match event:
                case engine.Chunk():
                    yield from self._render.more(index, event)
                case engine.Finished():
                    self._finished[index] = event
                    yield from self._render.more(index, event)


def model(name: str, created: int, meta: dict[str, object]) -> dict[str, Any]:
    head = {"id": name, "object": "model", "created": created, "owned_by": "switchyard"}
    return {**head, "meta": meta}


def models(data: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": list(data)}


def start(head: Head, kind: str) -> dict[str, Any]:
    return {
        "id": head.identifier,
        "object": kind,
        "created": head.created,
        "model": head.model,
    }
