"""The endpoints: parse, submit, answer."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import flask
import werkzeug.exceptions

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.chat.request import Chat
from switchyard.app.chat.request import chat as parse_chat
from switchyard.app.delivery import submit as generation
from switchyard.app.delivery.framing import (
    Framing,
    PlainText,
    choose_framing,
    media_types,
)
from switchyard.app.delivery.progress import WithProgress
from switchyard.app.delivery.render import Render
from switchyard.app.delivery.timings import WithTimings, timings
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.openai import bodies, chat, parse, render
from switchyard.app.formats.openai.logprobs import TokenNames
from switchyard.app.formats.shapes import usage
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.request.generation import Generation, Scored
from switchyard.app.services import repeatable, services

blueprint = flask.Blueprint("switchyard_openai", __name__, url_prefix="/v1")


@blueprint.post("/completions")
@declares(
    {200: bodies.CompletionBody},
    body=parse.Completion,
    streams=media_types(bodies.CompletionBody),
    errors=GENERATION,
)
@repeatable
def create_completion() -> flask.Response:
    """Continue a prompt."""
    request = generation.receive(parse.completion, services().settings, services().gate)
    model = services().models.get(request.model)
    with generation.names_of(request):
        # Before the work of tokenizing: tokens are not longer than 16 characters on average.
        lengths = (len(p) // 16 if isinstance(p, str) else len(p) for p in request.prompt)
        model.check_room(len(request.prompt) * request.num_jobs, sum(lengths) * request.num_jobs)
        max_tokens = model.info.max_seq_len
        prompts = [
            model.tokenizer.encode(p, max_tokens) if isinstance(p, str) else tuple(p)
            for p in request.prompt
        ]
        echoes = [
            render.Echo(p if isinstance(p, str) else model.tokenizer.decode(p), token_ids)
            if request.echo
            else None
            for p, token_ids in zip(request.prompt, prompts, strict=True)
            for _ in range(request.n)
        ]
        head = _head("cmpl", model)
        num_jobs = len(prompts) * request.num_jobs
        choices = {name: generation.Choice() for name in _identifiers(head, num_jobs)}
        body = render.CompletionRender(head, echoes, _names(request, model))
        framing = _framing(request, len(echoes))
        return _answer(request, model, prompts, choices, body, framing)


@blueprint.post("/chat/completions")
@declares(
    {200: bodies.ChatBody},
    body=Chat,
    streams=media_types(bodies.ChatChunk),
    errors=GENERATION,
)
@repeatable
def create_chat_completion() -> flask.Response:
    """Answer a conversation, by the model's own chat template."""
    request = generation.receive(parse_chat, services().settings, services().gate)
    model = services().models.get(request.model)
    with generation.names_of(request):
        framing = _framing(request, request.n)
        ready = services().prompts(model).prepare(request)
        if isinstance(framing, PlainText):  # whose one text is all that the model writes
            ready = replace(ready, tags=None)
        head = _head("chatcmpl", model)
        answers = {
            name: Answer(ready.parser(), partial(model.cancel, name), request.include_reasoning)
            for name in _identifiers(head, request.n)
        }
        body = chat.ChatRender(head, list(answers.values()), _names(request, model))
        return _answer(request, model, [ready.token_ids], answers, body, framing, ready.fit)


@blueprint.post("/embeddings")
@declares({}, errors=(501,))
def create_embedding() -> flask.Response:
    """There are no embeddings here."""
    raise werkzeug.exceptions.NotImplemented(
        "this server's models generate text and offer no embeddings"
    )


def _answer(
    request: Generation,
    model: engine.Engine,
    prompts: Sequence[tuple[int, ...]],
    choices: Mapping[str, generation.Choice],
    body: render.Render,
    framing: Framing | None,
    fit: Callable[[engine.Job], engine.Job] | None = None,
) -> flask.Response:
    """`n` choices of each prompt, by identifier, streamed or not. Raises what `generation.submit`
    does.
    """
    identifiers = list(choices)
    submitted = generation.submit(
        request, model, prompts, identifiers, framing is not None, services().settings, fit
    )
    if framing is not None:
        stream: Render = render.StreamRender(
            body, identifiers, request.num_jobs, request.include_usage
        )
        if request.timings:
            stream = WithTimings(stream, identifiers, request.num_jobs)
        if request.return_progress:
            stream = WithProgress(stream, identifiers, body.empty)
        return services().answers.stream(submitted, stream, framing)

    def whole() -> dict[str, Any]:
        finished = [c.finished for c in choices.values() if c.finished is not None]
        used = usage(finished, request.num_jobs, body.reasoning_tokens)
        best = generation.best_of(list(choices.values()), request.num_jobs, request.n)
        more = {"timings": timings(finished, request.num_jobs)} if request.timings else {}
        return {**body.whole(best, used), **more}

    return services().answers.whole(submitted, partial(generation.gather, choices), whole)


def _framing(request: Generation, num_choices: int) -> Framing | None:
    """Of a streamed answer. Raises BadRequest for what the one asked for can't tell."""
    if not request.stream:
        return None
    framing = choose_framing(flask.request.accept_mimetypes)
    if isinstance(framing, PlainText):
        no_room = "Accept: text/plain has no room for"
        if num_choices > 1:
            raise BadRequest("Accept: text/plain has room for one choice only", "n")
        if request.include_usage:
            raise BadRequest(f"{no_room} usage", "stream_options")
        if request.timings:
            raise BadRequest(f"{no_room} timings", "timings")
        if request.return_progress:
            raise BadRequest(f"{no_room} progress", "return_progress")
        if request.asked_logprobs is not None:
            raise BadRequest(f"{no_room} logprobs", "logprobs")
        if isinstance(request, Chat) and request.offer.tools:
            raise BadRequest(f"{no_room} calls of tools", "tools")
    return framing


def _names(request: Scored, model: engine.Engine) -> TokenNames | None:
    """What to call tokens in logprobs; None if none are to be shown."""
    if request.asked_logprobs is None:
        return None
    return TokenNames(model.tokenizer, request.return_tokens_as_token_ids)


def _identifiers(head: render.Head, num_choices: int) -> list[str]:
    return [f"{head.identifier}-{i}" for i in range(num_choices)]


def _head(prefix: str, model: engine.Engine) -> render.Head:
    return render.Head(
        identifier=f"{prefix}-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=model.config.name,
        fingerprint=model.model_dir.fingerprint,
    )
