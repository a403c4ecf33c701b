"""The endpoints: parse, submit, answer."""

import time
import uuid
from collections.abc import Sequence

import flask

import engine
from app import generation
from app.body import BadRequest, json_response
from app.chat import prompt
from app.chat.request import Chat
from app.contract import GENERATION, declares
from app.openai import bodies, parse, render
from app.parameters import Generation
from app.services import services
from app.streaming import PlainText, choose_framing, media_types, stream_response

blueprint = flask.Blueprint("switchyard_openai", __name__, url_prefix="/v1")


@blueprint.post("/completions")
@declares(
    {200: bodies.CompletionBody},
    body=parse.Completion,
    streams=media_types(bodies.CompletionBody),
    errors=GENERATION,
)
def create_completion() -> flask.Response:
    """Continue a prompt."""
    request = generation.receive(parse.completion)
    model = services().models.get(request.model)
    with generation.names_of(request):
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
@declares(
    {200: bodies.ChatBody},
    body=Chat,
    streams=media_types(bodies.ChatChunk),
    errors=GENERATION,
)
def create_chat_completion() -> flask.Response:
    """Answer a conversation, by the model's own chat template."""
    request = generation.receive(parse.chat)
    model = services().models.get(request.model)
    with generation.names_of(request):
        token_ids = prompt.encode(request, model)
        return _answer(request, model, [token_ids], render.ChatRender(_head("chatcmpl", model)))


@blueprint.get("/models")
@declares({200: bodies.ModelList})
def list_models() -> flask.Response:
    """The models that are served."""
    names = services().models.names
    return json_response(render.models([_describe_model(name) for name in names]))


@blueprint.get("/models/<path:name>")
@declares({200: bodies.ModelBody}, errors=(404,))
def retrieve_model(name: str) -> flask.Response:
    """One of the models."""
    return json_response(_describe_model(name))


def _answer(
    request: Generation,
    model: engine.Engine,
    prompts: Sequence[tuple[int, ...]],
    body: render.Render,
) -> flask.Response:
    """`n` choices of each prompt, streamed or not. Raises what `generation.submit` does."""
    framing = choose_framing(flask.request.accept_mimetypes) if request.stream else None
    if isinstance(framing, PlainText):
        if len(prompts) * request.n > 1:
            raise BadRequest("Accept: text/plain has room for one choice only", "n")
        if request.include_usage:
            raise BadRequest("Accept: text/plain has no room for usage", "stream_options")
    identifiers = [f"{body.head.identifier}-{i}" for i in range(len(prompts) * request.n)]
    reader = generation.submit(request, model, prompts, identifiers, framing is not None)
    if framing is not None:
        bodies = render.StreamRender(body, identifiers, request.n, request.include_usage)
        return stream_response(reader, bodies, framing, services().settings.heartbeat)
    choices = generation.collect(reader, identifiers)
    finished = [choice.finished for choice in choices if choice.finished is not None]
    return json_response(body.whole(choices, render.usage(finished, request.n)))


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
