"""A prompt to the answer to it, streamed or not, whatever the wire format. Request threads."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import flask

from switchyard import engine
from switchyard.app.delivery import submit as generation
from switchyard.app.delivery.framing import Framing, PlainText
from switchyard.app.delivery.progress import WithProgress
from switchyard.app.delivery.reader import Submitted
from switchyard.app.delivery.render import Render as Bodies
from switchyard.app.delivery.render import TextBody
from switchyard.app.delivery.submit import Choice
from switchyard.app.delivery.timings import WithTimings, timings
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.text.request import Text
from switchyard.app.services import services


class Render(Protocol):
    """A wire format's bodies."""

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """Of a response that isn't streamed."""

    def delta(self, text: str) -> dict[str, Any]:
        """More text of a stream."""

    def end(self, finished: engine.Finished) -> dict[str, Any]:
        """The last of a stream."""


def submit(
    request: Text, identifiers: Sequence[str], is_streamed: bool, wake: Callable[[], None] | None
) -> Submitted:
    """Submit the `n` jobs of the prompt. Raises what `generation.submit` does."""
    model = services().models.get(request.model)
    with generation.names_of(request):
        # Before the work of tokenizing: tokens are not longer than 16 characters on average.
        model.check_room(request.n, len(request.prompt) // 16 * request.n)
        token_ids = model.tokenizer.encode(
            request.prompt, model.info.max_seq_len, parse_special=request.parse_special
        )
        _check_context(request, len(token_ids), model)
        return generation.submit(
            request, model, [token_ids], identifiers, is_streamed, services().settings, wake=wake
        )


def _check_context(request: Text, prompt_tokens: int, model: engine.Engine) -> None:
    """Raises PromptTooLong where the request's own limit is lower. A prompt is not cut."""
    if request.max_context is None:
        return
    limit, name = request.max_context
    new_tokens = model.max_new_tokens(prompt_tokens, request.asked_tokens)
    if prompt_tokens + new_tokens > limit:
        raise engine.PromptTooLong(
            f"{prompt_tokens} prompt tokens and {new_tokens} new tokens are more than the {limit}"
            f" of {name}",
            name,
        )


def answer(
    request: Text, identifier: str, render: Render, framing: Framing | None
) -> flask.Response:
    """`framing`: of a stream, else None. Raises what `submit` and `whole_response` do."""
    if framing is not None and request.n > 1:
        raise BadRequest("a stream has room for one choice only", request.names["n"])
    if isinstance(framing, PlainText) and request.timings:
        raise BadRequest("Accept: text/plain has no room for timings", "timings")
    if isinstance(framing, PlainText) and request.return_progress:
        raise BadRequest("Accept: text/plain has no room for progress", "return_progress")
    identifiers = [f"{identifier}-{i}" for i in range(request.n)]
    submitted = submit(request, identifiers, framing is not None, None)
    if framing is not None:
        stream: Bodies = TextBodies(render)
        if request.timings:
            stream = WithTimings(stream, identifiers, request.n)
        if request.return_progress:
            stream = WithProgress(stream, identifiers, lambda _: render.delta(""))
        return services().answers.stream(submitted, stream, framing)
    choices = {name: Choice() for name in identifiers}

    def whole() -> dict[str, Any]:
        finished = [c.finished for c in choices.values() if c.finished is not None]
        more = {"timings": timings(finished, request.n)} if request.timings else {}
        return {**render.whole(list(choices.values())), **more}

    return services().answers.whole(submitted, partial(generation.gather, choices), whole)


class TextBodies:
    """Of a stream of one choice."""

    def __init__(self, render: Render) -> None:
        self._render = render

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[tuple[dict[str, Any], str]]:
        for event in events:
            match event:
                case engine.Chunk(text=text) if text:
                    yield self._render.delta(text), text
                case engine.Finished():
                    yield self._render.end(event), ""

    def text_body(self, identifier: str) -> TextBody | None:
        return self._render.delta
