"""The routes of Anthropic's API."""

import uuid
from collections.abc import Mapping

import flask

from switchyard.app.chat.answer import Answer
from switchyard.app.delivery.render import Render
from switchyard.app.delivery.submit import names_of, receive
from switchyard.app.formats.answer import answer_chat
from switchyard.app.formats.anthropic import bodies, parse, render
from switchyard.app.formats.anthropic.errors import BLUEPRINT, AnthropicErrorBody
from switchyard.app.http.body import json_response
from switchyard.app.http.request_id import request_id
from switchyard.app.leases import model_of
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.services import repeatable, services

blueprint = flask.Blueprint(BLUEPRINT, __name__, url_prefix="/v1/messages")
ERRORS = (*GENERATION, 529)  # 529 if a retry may help, otherwise 503


@blueprint.post("")
@declares(
    {200: bodies.MessageBody},
    body=parse.MessageRequest,
    streams={render.EVENTS.mimetype: bodies.MessageEvent},
    errors=ERRORS,
    error=AnthropicErrorBody,
    example={"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64},
)
@repeatable
def create_message() -> flask.Response:
    """Answer a conversation, in Anthropic's format."""
    request = receive(parse.message, services().settings, services().gate)
    model = model_of(request.model)
    prompts = services().prompts(model)
    chat = request.chat(prompts.variables, prompts.has_thoughts)
    identifier = f"msg_{uuid.uuid4().hex}"

    def make_render(prompt: tuple[int, ...], answers: Mapping[str, Answer]) -> Render:
        stop = tuple(chat.stop)
        head = render.MessageHead(identifier, model.config.name, len(prompt), stop, request_id())
        [answer] = answers.values()
        return render.MessageRender(head, answer)

    return answer_chat(chat, identifier, make_render, render.EVENTS if request.stream else None)


@blueprint.post("/count_tokens")
@declares(
    {200: bodies.TokenCount},
    body=parse.MessagesBody,
    errors=ERRORS,
    error=AnthropicErrorBody,
    example={"messages": [{"role": "user", "content": "Hello!"}]},
)
def count_tokens() -> flask.Response:
    """Count the tokens of a conversation's prompt."""
    request = receive(parse.count, services().settings, services().gate)
    model = services().models.get(request.model)
    prompts = services().prompts(model)
    chat = request.chat(prompts.variables, prompts.has_thoughts)
    with names_of(chat):
        token_ids = prompts.encode(chat, model.max_told)
    return json_response({"input_tokens": len(token_ids)})
