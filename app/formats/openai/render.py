"""Renders events as bodies of OpenAI's API. Pure."""

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from switchyard import engine
from switchyard.app.delivery.render import Body, TextBody
from switchyard.app.formats.choices import ChoicesRender
from switchyard.app.formats.logprobs import CompletionLogprobs, TokenNames, prompt_logprobs
from switchyard.app.formats.shapes import ending, usage
from switchyard.app.parts.choice import Choice, best_of
from switchyard.app.request.scored import Scored


@dataclass(frozen=True, slots=True)
class OpenAIHead:
    """The members that all bodies of one response share."""

    identifier: str
    created: int  # Unix seconds
    model: str
    prompts: Sequence[tuple[int, ...]]
    # The model's fingerprint; equal seeds give equal texts only if the fingerprints are equal.
    fingerprint: str

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens in all prompts."""
        return sum(map(len, self.prompts))


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt with which a completion begins."""

    text: str
    token_ids: tuple[int, ...]


# The logprobs of a prompt's tokens; empty if not wanted.
PromptLogprobs = Sequence[engine.TokenLogprob | None]


class OpenAIRender(ChoicesRender):
    """The base class of the renders of completions and chats. Renders choices in the order of their
    indexes, then the usage.
    """

    def __init__(
        self,
        head: OpenAIHead,
        request: Scored,
        choices: Mapping[str, Choice],
        names: TokenNames,
    ) -> None:
        """`names`: the names of tokens in logprobs."""
        super().__init__(choices)
        self._names = names
        self._head = head
        self._request = request
        self._index = {identifier: i for i, identifier in enumerate(choices)}
        self._finished: dict[int, engine.Finished] = {}
        self._open: set[int] = set()  # choices that have begun
        self._num_tokens = 0  # new tokens so far
        # For each choice: tokens that are not in a body yet.
        self._untold: dict[int, list[int]] = {}
        self._has_prompt: set[int] = set()  # choices that have sent their prompt's tokens

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[Body]:
        for body, text in self._bodies(events):
            yield self._with_usage(body), text
        if self._request.include_usage and len(self._finished) == len(self._index):
            finished = [self._finished[i] for i in range(len(self._index))]
            yield self._behind(self._usage(finished)), ""

    def text_body(self, identifier: str) -> TextBody | None:
        if self._request.continuous_usage or self._request.return_token_ids:
            return None
        body = self._text_body(self._index[identifier])
        return body and (lambda text: self._with_usage(body(text)))

    def whole(self) -> dict[str, Any]:
        finished = [c.finished for c in self.choices.values() if c.finished is not None]
        return self._whole(self._usage(finished))

    def _of_prompt(self, choice: Choice) -> dict[str, Any]:
        """The logprobs of a choice's prompt, if the request asks for them."""
        if (num_top := self._request.prompt_logprobs) is None:
            return {}
        told = prompt_logprobs(choice.prompt_logprobs, num_top, self._names)
        return {"prompt_logprobs": told}

    # Implemented by each render. `index`: the index of the choice

    @property
    def _reasoning_tokens(self) -> int:
        """The number of tokens in the thoughts of all choices so far."""
        return 0

    @abc.abstractmethod
    def _opening(self, index: int, logprobs: PromptLogprobs) -> Iterator[Body]:
        """The bodies before a choice's first new text. `logprobs`: the prompt's logprobs."""

    @abc.abstractmethod
    def _more(self, index: int, event: engine.Chunk | engine.Finished) -> Iterator[Body]:
        """The bodies for a further event of a choice."""

    @abc.abstractmethod
    def _text_body(self, index: int) -> TextBody | None:
        """Like `text_body`. Called for a choice that has begun."""

    @abc.abstractmethod
    def _behind(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The body after all choices, if the request asks for usage."""

    @abc.abstractmethod
    def _whole(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The whole body, with this usage."""

    def _usage(self, finished: Sequence[engine.Finished]) -> dict[str, Any]:
        return usage(finished, self._request.num_jobs, self._reasoning_tokens)

    def _with_usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body with `usage`: null before the end, unless the request asks for running usage."""
        if not self._request.include_usage:
            return body
        usage = None
        if self._request.continuous_usage:
            prompt, new = self._head.prompt_tokens, self._num_tokens
            total = prompt + new
            usage = {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": total}
        return {**body, "usage": usage}

    def _bodies(self, events: Sequence[engine.JobEvent]) -> Iterator[Body]:
        for event in events:
            index = self._index[event.identifier]
            if index not in self._open and isinstance(
                event, engine.PromptLogprobs | engine.Chunk | engine.Finished
            ):
                self._open.add(index)
                logprobs = event.logprobs if isinstance(event, engine.PromptLogprobs) else ()
                yield from self._opening(index, logprobs)
            match event:
                case engine.Chunk():
                    self._num_tokens += len(event.token_ids)
                    yield from self._with_tokens(index, event.token_ids, self._more(index, event))
                case engine.Finished():
                    self._finished[index] = event
                    yield from self._with_tokens(index, (), self._more(index, event))

    def _with_tokens(
        self, index: int, token_ids: Sequence[int], bodies: Iterator[Body]
    ) -> Iterator[Body]:
        """The bodies for an event. If the client asks for tokens, the last body contains the tokens
        of all events since the previous body.
        """
        if not self._request.return_token_ids:
            yield from bodies
            return
        untold = self._untold.setdefault(index, [])
        untold += token_ids
        told = list(bodies)
        if told:
            body, _ = told[-1]
            body["choices"][0]["token_ids"] = untold
            self._untold[index] = []
            if index not in self._has_prompt:
                self._has_prompt.add(index)
                self._tell_prompt(body, body["choices"][0], index)
        yield from told

    def _prompt_of(self, index: int) -> tuple[int, ...]:
        return self._head.prompts[index // self._request.n]

    def _tell_prompt(self, body: dict[str, Any], choice: dict[str, Any], index: int) -> None:
        """Adds the tokens of a choice's prompt to the choice or its body."""
        choice["prompt_token_ids"] = self._prompt_of(index)


class CompletionRender(OpenAIRender):
    def __init__(
        self,
        head: OpenAIHead,
        request: Scored,
        choices: Mapping[str, Choice],
        echoes: Sequence[Echo | None],
        names: TokenNames,
    ) -> None:
        """`echoes`: for each choice of the answer, the prompt with which the choice begins."""
        super().__init__(head, request, choices, names)
        self._echoes = echoes
        is_scored = request.asked_logprobs is not None
        self._logprobs = [CompletionLogprobs(names) for _ in echoes] if is_scored else None

    def empty(self, index: int) -> dict[str, Any]:
        return self._text(index, "")

    def _opening(self, index: int, logprobs: PromptLogprobs) -> Iterator[Body]:
        if prompt := self._prompt(index):
            shown = self._show(index, (), logprobs)
            yield self._text(index, prompt, shown), prompt

    def _more(self, index: int, event: engine.Chunk | engine.Finished) -> Iterator[Body]:
        match event:
            case engine.Chunk(text=text, logprobs=logprobs) if text or logprobs:
                shown = self._show(index, logprobs or ())
                yield self._text(index, text, shown), text
            case engine.Finished(stop_token=stop_token):
                shown = self._show(index, [stop_token]) if stop_token else None
                yield self._body([self._choice(index, "", event, shown)]), ""

    def _text_body(self, index: int) -> TextBody | None:
        return None if self._logprobs else partial(self._text, index)

    def _behind(self, usage: dict[str, Any]) -> dict[str, Any]:
        return self._body([], usage=usage)

    def _whole(self, usage: dict[str, Any]) -> dict[str, Any]:
        num_jobs, n = self._request.num_jobs, self._request.n
        bodies = []
        for i, choice in enumerate(best_of(list(self.choices.values()), num_jobs, n)):
            text = "".join((self._prompt(i), *choice.texts))
            stop_token = choice.finished and choice.finished.stop_token
            logprobs = [*choice.logprobs, *([stop_token] if stop_token else [])]
            shown = self._show(i, logprobs, choice.prompt_logprobs)
            body = self._choice(i, text, choice.finished, shown)
            if self._request.return_token_ids:
                body |= {"token_ids": choice.token_ids, "prompt_token_ids": self._prompt_of(i)}
            bodies.append({**body, **self._of_prompt(choice)})
        return self._body(bodies, usage=usage)

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
        of_prompt: PromptLogprobs = (),
    ) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        shown, echo = self._logprobs[index], self._echoes[index]
        if of_prompt and echo is not None:
            asked = self._request.asked_logprobs
            cut = [one and replace(one, top=one.top[:asked]) for one in of_prompt]
            shown.add_prompt(echo.token_ids, echo.text, cut)
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
        return {**start(self._head, "text_completion"), "choices": choices, **more}


def start(head: OpenAIHead, kind: str) -> dict[str, Any]:
    return {
        "id": head.identifier,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "system_fingerprint": head.fingerprint,
    }
