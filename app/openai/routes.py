"""The endpoints: parse, submit, answer."""

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flask

import engine
from app.body import BadRequest, json_response, read_json
from app.client import Client
from app.deadlines import Deadlines
from app.identity import share_of
from app.openai import parse, render
from app.reader import Reader
from app.services import services
from app.streaming import PlainText, choose_framing, raise_failure, stream_response

logger = logging.getLogger(__name__)

blueprint = flask.Blueprint("switchyard_openai", __name__, url_prefix="/v1")


@blueprint.post("/completions")
def create_completion() -> flask.Response:
    request = _receive(parse.completion)
    model = services().models.get(request.model)
    with _names_of(request):
        # Before the work of tokenizing: tokens are not longer than 16 characters on average.
        lengths = (len(p) // 16 if isinstance(p, str) else len(p) for p in request.prompt)
        model.check_room(len(request.prompt) * request.n, sum(lengths) * request.n)
        max_tokens = model.info.max_seq_len
        prompts = [
            model.tokenizer.encode(p, max_tokens) if isinstance(p, str) else tuple(p)
            for p in request.prompt
        ]
        echoed = [
            (p if isinstance(p, str) else model.tokenizer.decode(p)) if request.echo else ""
            for p in request.prompt
            for _ in range(request.n)
        ]
        body = render.CompletionRender(_head("cmpl", model), echoed)
        return _answer(request, model, prompts, body)


@blueprint.post("/chat/completions")
def create_chat_completion() -> flask.Response:
    request = _receive(parse.chat)
    model = services().models.get(request.model)
    with _names_of(request):
        num_characters = sum(len(m.text) for m in request.messages)
        model.check_room(request.n, num_characters // 16 * request.n)
        messages = [
            {"role": m.role, "content": m.text, **({"name": m.name} if m.name else {})}
            for m in request.messages
        ]
        model.tokenizer.check_length(
            "".join(m.text for m in request.messages), model.info.max_seq_len
        )
        template = services().chat_templates[model.config.name]
        text = template.render(messages, model.tokenizer.escape)
        prompt = model.tokenizer.encode_template(text, model.info.max_seq_len)
        return _answer(request, model, [prompt], render.ChatRender(_head("chatcmpl", model)))


@blueprint.get("/models")
def list_models() -> flask.Response:
    names = services().models.names
    return json_response(render.models([_describe_model(name) for name in names]))


@blueprint.get("/models/<path:name>")
def retrieve_model(name: str) -> flask.Response:
    return json_response(_describe_model(name))


def _receive(parse_body: Callable[[dict[str, Any]], parse.Request]) -> parse.Request:
    """The current request, from a client that must neither send nor read too slowly."""
    settings = services().settings
    client = Client(flask.request.environ)
    client.limit_sends(settings.send_timeout)
    with client.receiving(settings.body_timeout):
        body = read_json(settings.max_body_bytes)
    request = parse_body(body)
    if request.timeout and settings.total_timeout and request.timeout > settings.total_timeout:
        raise BadRequest(
            f"timeout: {request.timeout:g} seconds are more than the"
            f" {settings.total_timeout:g} that this server allows",
            "timeout",
        )
    return request


@contextlib.contextmanager
def _names_of(request: parse.Generation) -> Iterator[None]:
    """Name a parameter at fault as the client does."""
    try:
        yield
    except engine.Rejected as error:
        error.param = request.names.get(error.param or "", error.param)
        raise


def _answer(
    request: parse.Generation,
    model: engine.Engine,
    prompts: Sequence[tuple[int, ...]],
    body: render.Render,
) -> flask.Response:
    """`n` choices of each prompt, streamed or not. Raises what `Engine.submit` does."""
    framing = choose_framing(flask.request.accept_mimetypes) if request.stream else None
    if isinstance(framing, PlainText):
        if len(prompts) * request.n > 1:
            raise BadRequest("Accept: text/plain has room for one choice only", "n")
        if request.include_usage:
            raise BadRequest("Accept: text/plain has no room for usage", "stream_options")
    identifiers = [f"{body.head.identifier}-{i}" for i in range(len(prompts) * request.n)]
    client = share_of(flask.request)
    jobs = []
    for i, identifier in enumerate(identifiers):
        prompt = prompts[i // request.n]
        max_new_tokens = model.max_new_tokens(len(prompt), request.asked_tokens)
        choice = i % request.n
        jobs.append(request.job(identifier, prompt, max_new_tokens, choice, model.config, client))
    settings = services().settings
    reader = Reader(
        model.submit(jobs),
        Client(flask.request.environ),
        Deadlines(
            settings.queue_timeout,
            settings.first_token_timeout,
            request.timeout or settings.total_timeout,
        ),
        prompt_tokens=sum(map(len, prompts)),
        serves_half_closed=framing is not None,
    )
    logger.debug("%s: %d jobs for user %r", body.head.identifier, len(jobs), request.user)
    if framing is not None:
        bodies = render.StreamRender(body, identifiers, request.n, request.include_usage)
        return stream_response(reader, bodies, framing, settings.heartbeat)
    choices = _collect(reader, identifiers)
    finished = [choice.finished for choice in choices if choice.finished is not None]
    return json_response(body.whole(choices, render.usage(finished, request.n)))


def _collect(reader: Reader, identifiers: Sequence[str]) -> list[render.Choice]:
    """Wait for all choices. Raises ClientGone, TimedOut, or the error of the first choice that
    fails; what has not ended is cancelled.
    """
    choices = {identifier: render.Choice() for identifier in identifiers}
    try:
        while not reader.is_finished:
            events = reader.take()
            raise_failure(events)
            for event in events:
                choices[event.identifier].add(event)
    finally:
        reader.close()
    return list(choices.values())


def _head(prefix: str, model: engine.Engine) -> render.Head:
    return render.Head(
        identifier=f"{prefix}-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=model.config.name,
        fingerprint=model.model_dir.fingerprint,
    )


def _describe_model(name: str) -> dict[str, object]:
    model = services().models.get(name)
    return render.model(name, model.model_dir.created)
