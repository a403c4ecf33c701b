"""Answers requests to Ollama's API, streamed or not. Runs on request threads."""

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import flask
import werkzeug.exceptions

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.delivery.framing import JSON_LINES
from switchyard.app.delivery.render import Render
from switchyard.app.delivery.timings import WithTimings
from switchyard.app.formats.answer import Prepared, answer, answer_chat, jobs_of
from switchyard.app.formats.ollama.models import LATEST
from switchyard.app.formats.ollama.parse import ChatRequest, GenerateRequest, OllamaBody
from switchyard.app.formats.ollama.render import LINES, OllamaHead, OllamaRender
from switchyard.app.formats.ollama.times import in_nanoseconds, written
from switchyard.app.http.body import dumps, json_response
from switchyard.app.http.identity import author_of, caller_of, is_operator
from switchyard.app.leases import model_of
from switchyard.app.parts.parser import PartParser
from switchyard.app.request import neutral
from switchyard.app.request.infill import infill
from switchyard.app.request.infill_forms import Gap
from switchyard.app.request.prompt_tokens import PromptTokens, ended_by
from switchyard.app.services import services

audit = logging.getLogger("switchyard.audit")


def name_of(name: str | None) -> str | None:
    """The name of a model, without the `:latest` tag unless the tag is part of a served model's
    name.
    """
    if name is None or not name.endswith(LATEST):
        return name
    try:
        services().models.get(name)
    except engine.ModelNotFound:
        return name.removesuffix(LATEST)
    return name


def answer_ollama(request: ChatRequest | GenerateRequest) -> flask.Response:
    """Answers a request, or only loads or unloads the model. Raises the same exceptions as
    `answer`, and werkzeug's Forbidden.
    """
    request = request.model_copy(update={"model": name_of(request.model)})
    if request.is_empty and request.keep_alive == 0:
        return _unload(request)
    begin = time.monotonic()
    model = model_of(request.model)
    load_seconds = time.monotonic() - begin
    if request.is_empty:
        _keep(request, model.config.name)
        return _done(request, model, "load", load_seconds)
    identifier = f"ollama-{uuid.uuid4().hex}"
    framing = LINES if request.stream else None
    has_context = isinstance(request, GenerateRequest) and not request.is_plain

    def make_render(prompt: tuple[int, ...], answers: Mapping[str, Answer]) -> Render:
        head = OllamaHead(
            model=model.config.name,
            created_at=written(time.time_ns()),
            load_seconds=load_seconds,
            is_chat=isinstance(request, ChatRequest),
            piece=model.tokenizer.piece,
            has_logprobs=request.asked_logprobs is not None,
            context=prompt if has_context else None,
            end_token_ids=services().prompts(model).end_token_ids if has_context else (),
        )
        [(job, found)] = answers.items()
        render = OllamaRender(head, found)
        return WithTimings(render, [job], 1) if request.timings else render

    if isinstance(request, GenerateRequest) and _is_plain(request, model):
        prepare = partial(_plain, request, model, identifier, make_render)
        response = answer(request, model, prepare, framing)
    else:
        before = partial(_after_context, request, model)
        response = answer_chat(request.chat(), identifier, make_render, framing, before)
    _keep(request, model.config.name)
    return response


def _is_plain(request: GenerateRequest, model: engine.Engine) -> bool:
    return request.is_plain or not services().template(model).source


def _plain(
    request: GenerateRequest,
    model: engine.Engine,
    identifier: str,
    make_render: Callable[[tuple[int, ...], Mapping[str, Answer]], Render],
) -> Prepared:
    """A prompt without a chat template: either a text to continue or a text with a gap."""
    tokenizer, most = model.tokenizer, model.info.max_seq_len
    model.check_room(1, tokenizer.guess(len(request.prompt) + len(request.suffix or "")))
    if request.suffix is None:
        prompt = PromptTokens(tokenizer.encode(request.prompt, most, parse_special=True))
    else:
        prompt = infill(tokenizer, Gap(request.prompt, request.suffix), most, "suffix")
    parser = PartParser(None)
    [job] = jobs_of(identifier, 1)
    answers = {job: Answer(parser, partial(model.cancel, job))}
    render = make_render(prompt.token_ids, answers)
    return Prepared([prompt.token_ids], [job], render, partial(ended_by, ends=prompt.ends))


def _after_context(
    request: OllamaBody, model: engine.Engine, token_ids: tuple[int, ...]
) -> tuple[int, ...]:
    """The tokens of the request's context, then those of the prompt. A token that begins every
    prompt stays first.
    """
    context = request.context if isinstance(request, GenerateRequest) else []
    if not context:
        return token_ids
    bos = model.tokenizer.token_id(model.model_dir.special_token("bos_token") or "")
    return (*context, *(token_ids[1:] if token_ids[:1] == (bos,) else token_ids))


def _keep(request: OllamaBody, name: str) -> None:
    """Sets how long the model stays loaded if the API key is an admin's. Other clients' values are
    ignored, and the response says so.
    """
    seconds, caller = request.keep_alive, caller_of(flask.request)
    if seconds is None:
        return
    if caller is None or not caller.is_admin:
        neutral.note("keep_alive")
        return
    audit.warning("%s: set keep_alive of %s to %g s", author_of(flask.request), name, seconds)
    if seconds:
        services().models.keep(name, max(seconds, 0.0))
        return
    try:
        services().models.unload(name, services().settings.total_timeout or None)
    except (engine.LoadUnderWay, engine.NotOurs):
        neutral.note("keep_alive")


def _unload(request: OllamaBody) -> flask.Response:
    if not is_operator(flask.request):
        raise werkzeug.exceptions.Forbidden(
            "only an admin's API key (or, without keys, a process on the server's own machine) may"
            " unload a model"
        )
    model = services().models.get(request.model)
    audit.warning("%s: unload %s", author_of(flask.request), model.config.name)
    services().models.unload(model.config.name)
    return _done(request, model, "unload")


def _done(
    request: OllamaBody, model: engine.Engine, reason: str, load_seconds: float = 0.0
) -> flask.Response:
    """The response to a request without a prompt."""
    is_chat = isinstance(request, ChatRequest)
    body: dict[str, Any] = {"model": model.config.name, "created_at": written(time.time_ns())}
    body |= {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
    body |= {"done": True, "done_reason": reason}
    if reason == "load":
        body |= dict.fromkeys(("total_duration", "load_duration"), in_nanoseconds(load_seconds))
    return one_line(body, request.stream)


def one_line(body: dict[str, Any], is_streamed: bool) -> flask.Response:
    """A response with a single body, which is the whole answer, whether or not the response is
    streamed.
    """
    if not is_streamed:
        return json_response(body)
    return flask.Response(dumps(body) + b"\n", mimetype=JSON_LINES.mimetype)
