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
from switchyard.app.chat import prompt
from switchyard.app.chat.answer import Answer
from switchyard.app.chat.request import Chat
from switchyard.app.delivery import submit as generation
from switchyard.app.delivery.answers import repeatable, whole_response
from switchyard.app.delivery.framing import (
    Framing,
    PlainText,
    choose_framing,
    media_types,
    stream_response,
)
from switchyard.app.delivery.progress import WithProgress
from switchyard.app.delivery.render import Render
from switchyard.app.delivery.timings import WithTimings, timings
from switchyard.app.errors import EitherErrorBody, expects_anthropic
from switchyard.app.formats import anthropic
from switchyard.app.formats.anthropic.bodies import AnthropicModel, AnthropicModelList
from switchyard.app.formats.openai import bodies, chat, parse, render
from switchyard.app.formats.openai.logprobs import TokenNames
from switchyard.app.http.body import BadRequest, json_response
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.request.generation import Generation, Scored
from switchyard.app.services import services

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
    request = generation.receive(parse.completion)
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
    request = generation.receive(parse.chat)
    model = services().models.get(request.model)
    with generation.names_of(request):
        framing = _framing(request, request.n)
        ready = prompt.prepare(request, model)
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


@blueprint.get("/models")
@declares({200: bodies.ModelList | AnthropicModelList}, error=EitherErrorBody)
def list_models() -> flask.Response:
    """The models that are served.

    In Anthropic's shape for its clients, which ask for the same path.
    """
    names = services().models.names
    models = [_describe_model(name) for name in names]
    return json_response((anthropic if expects_anthropic() else render).models(models))


@blueprint.get("/models/<path:model>")
@declares({200: bodies.ModelBody | AnthropicModel}, errors=(404,), error=EitherErrorBody)
def retrieve_model(model: str) -> flask.Response:
    """One of the models."""
    return json_response(_describe_model(model))


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
    reader = generation.submit(request, model, prompts, identifiers, framing is not None, fit)
    if framing is not None:
        stream: Render = render.StreamRender(
            body, identifiers, request.num_jobs, request.include_usage
        )
        if request.timings:
            stream = WithTimings(stream, identifiers, request.num_jobs)
        if request.return_progress:
            stream = WithProgress(stream, identifiers, body.empty)
        return stream_response(reader, stream, framing, services().settings.heartbeat)

    def whole() -> dict[str, Any]:
        finished = [c.finished for c in choices.values() if c.finished is not None]
        usage = render.usage(finished, request.num_jobs, body.reasoning_tokens)
        best = generation.best_of(list(choices.values()), request.num_jobs, request.n)
        more = {"timings": timings(finished, request.num_jobs)} if request.timings else {}
        return {**body.whole(best, usage), **more}

    return whole_response(reader, partial(generation.gather, choices), whole)


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


def _describe_model(name: str) -> dict[str, object]:
    model = services().models.get(name)
    if expects_anthropic():
        return anthropic.describe_model(model)
    return render.model(name, model.model_dir.created, _meta(model))


def _meta(model: engine.Engine) -> dict[str, object]:
    """What is known of a model once it is loaded."""
    try:
        info = model.info
    except engine.Refused:
        return {}
    return {
        "device": info.device,
        "max_seq_len": info.max_seq_len,
        "cache_tokens": info.num_pages * info.page_size,
        "cache_mode": info.cache_mode,
        "loras": list(info.loras),
    }
