"""The routes of OpenAI's completions and chats."""

import time
import uuid
from collections.abc import Mapping, Sequence
from functools import partial

import flask
import werkzeug.exceptions

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.chat.request import Chat
from switchyard.app.chat.request import chat as parse_chat
from switchyard.app.delivery.framing import PLAIN_TEXT, Framing, choose_framing, media_types
from switchyard.app.delivery.render import Render
from switchyard.app.delivery.submit import receive
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.answer import Prepared, answer, answer_chat, jobs_of
from switchyard.app.formats.choices import with_extras
from switchyard.app.formats.count import InputTokens, answer_count
from switchyard.app.formats.logprobs import TokenNames
from switchyard.app.formats.openai import bodies, parse, render
from switchyard.app.formats.openai.chat import ChatRender
from switchyard.app.leases import model_of
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.parts.choice import Choice
from switchyard.app.request.infill import infill
from switchyard.app.request.infill_forms import Gap
from switchyard.app.request.prompt_tokens import PromptTokens, ended_by
from switchyard.app.request.scored import Scored
from switchyard.app.services import repeatable, services

blueprint = flask.Blueprint("switchyard_openai", __name__, url_prefix="/v1")


@blueprint.post("/completions")
@declares(
    {200: bodies.CompletionBody},
    body=parse.Completion,
    streams=media_types(bodies.CompletionBody),
    errors=GENERATION,
    example={"prompt": "Once upon a time", "max_tokens": 64},
)
@repeatable
def create_completion() -> flask.Response:
    """Continue a prompt."""
    request = receive(parse.completion, services().settings, services().gate)
    model = model_of(request.model)
    framing = _framing(request, len(request.prompt) * request.n)
    return answer(request, model, partial(_prepare, request, model), framing)


def _prepare(request: parse.Completion, model: engine.Engine) -> Prepared:
    # Checked before the work of tokenizing.
    behind, guess = len(request.suffix or ""), model.tokenizer.guess
    lengths = (guess(len(p) + behind) if isinstance(p, str) else len(p) for p in request.prompt)
    model.check_room(len(request.prompt) * request.num_jobs, sum(lengths) * request.num_jobs)
    max_tokens = model.info.max_seq_len
    read = [_read(p, request.suffix, model.tokenizer, max_tokens) for p in request.prompt]
    prompts = [one.token_ids for one in read]
    echoes = [
        render.Echo(p if isinstance(p, str) else model.tokenizer.decode(p), token_ids)
        if request.echo
        else None
        for p, token_ids in zip(request.prompt, prompts, strict=True)
        for _ in range(request.n)
    ]
    head = _head(f"cmpl-{uuid.uuid4().hex}", model, prompts)
    choices = {job: Choice() for job in jobs_of(head.identifier, len(prompts) * request.num_jobs)}
    body = render.CompletionRender(head, request, choices, echoes, _names(request, model))
    fit = partial(ended_by, ends=read[0].ends)
    return Prepared(prompts, list(choices), with_extras(body, request, prompts), fit)


def _read(
    prompt: str | list[int], suffix: str | None, tokenizer: engine.Tokenizer, max_tokens: int
) -> PromptTokens:
    """The tokens of one prompt. Raises BadRequest, PromptTooLong."""
    if not isinstance(prompt, str):
        return PromptTokens(tuple(prompt))
    if suffix is None:
        return PromptTokens(tokenizer.encode(prompt, max_tokens))
    return infill(tokenizer, Gap(prompt, suffix), max_tokens, "suffix")


@blueprint.post("/chat/completions")
@declares(
    {200: bodies.ChatBody},
    body=Chat,
    streams=media_types(bodies.ChatChunk),
    errors=GENERATION,
    example={"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64},
)
@repeatable
def create_chat_completion() -> flask.Response:
    """Answer a conversation, rendered with the model's own chat template."""
    request = receive(parse_chat, services().settings, services().gate)
    model = model_of(request.model)
    identifier = f"chatcmpl-{uuid.uuid4().hex}"

    def make_render(prompt: tuple[int, ...], answers: Mapping[str, Answer]) -> Render:
        head = _head(identifier, model, [prompt])
        chat = ChatRender(head, request, answers, _names(request, model))
        return with_extras(chat, request, [prompt])

    return answer_chat(request, identifier, make_render, _framing(request, request.n))


@blueprint.post("/chat/completions/input_tokens")
@declares(
    {200: InputTokens},
    body=Chat,
    errors=(404, 503),
    example={"messages": [{"role": "user", "content": "Hello!"}]},
)
def count_chat_tokens() -> flask.Response:
    """Count the tokens of a conversation's prompt, as in llama.cpp."""
    return answer_count(receive(parse_chat, services().settings, services().gate))


@blueprint.post("/embeddings")
@declares({}, errors=(501,))
def create_embedding() -> flask.Response:
    """Not supported: this server offers no embeddings."""
    raise werkzeug.exceptions.NotImplemented(
        "this server offers no embeddings: its models only generate text"
    )


def _framing(request: Scored, num_choices: int) -> Framing | None:
    """The framing of a streamed answer. Raises BadRequest for a parameter whose result the framing
    can't contain.
    """
    if not request.stream:
        return None
    framing = choose_framing(flask.request.accept_mimetypes)
    if framing is PLAIN_TEXT:
        cant = "a text/plain response can't contain"
        if num_choices > 1:
            raise BadRequest("Accept: text/plain allows only one choice", "n")
        if request.include_usage:
            raise BadRequest(f"{cant} usage", "stream_options")
        for name in ("timings", "timings_per_token"):
            if getattr(request, name):
                raise BadRequest(f"{cant} timings", name)
        if request.return_progress:
            raise BadRequest(f"{cant} progress", "return_progress")
        if request.asked_logprobs is not None:
            raise BadRequest(f"{cant} logprobs", "logprobs")
        if request.return_token_ids:
            raise BadRequest(f"{cant} tokens", "return_token_ids")
        if isinstance(request, Chat) and request.offer.tools:
            raise BadRequest(f"{cant} tool calls", "tools")
    return framing


def _names(request: Scored, model: engine.Engine) -> TokenNames:
    """The names of tokens in logprobs."""
    return TokenNames(model.tokenizer, request.return_tokens_as_token_ids)


def _head(
    identifier: str, model: engine.Engine, prompts: Sequence[tuple[int, ...]]
) -> render.OpenAIHead:
    return render.OpenAIHead(
        identifier=identifier,
        created=int(time.time()),
        model=model.config.name,
        prompts=prompts,
        fingerprint=model.model_dir.fingerprint,
    )
