"""The endpoints: parse, submit, answer."""

import uuid
from collections import deque
from functools import partial
from typing import Any

import flask

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.delivery import submit as generation
from switchyard.app.errors import AnthropicErrorBody, describe_to_anthropic
from switchyard.app.formats.anthropic import bodies, parse, render
from switchyard.app.http.body import dumps, json_response
from switchyard.app.http.request_id import request_id
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.services import repeatable, services

blueprint = flask.Blueprint("switchyard_anthropic", __name__, url_prefix="/v1/messages")
ERRORS = (*GENERATION, 529)  # 503 only where no other try helps


class NamedEvents:
    """Server-sent events, each named by its type."""

    mimetype = "text/event-stream"
    end = b""

    def __init__(self) -> None:
        self._request_id = request_id()  # a stream goes on when the request's context is gone
        self.heartbeat = self.frame({"type": "ping"}, "")

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (str(body["type"]).encode(), dumps(body))

    def error(self, error: Exception) -> bytes:
        return self.frame(describe_to_anthropic(error, self._request_id)[1], "")


@blueprint.post("")
@declares(
    {200: bodies.MessageBody},
    body=parse.MessageRequest,
    streams={NamedEvents.mimetype: bodies.MessageEvent},
    errors=ERRORS,
    error=AnthropicErrorBody,
)
@repeatable
def create_message() -> flask.Response:
    """Answer a conversation, in Anthropic's shape."""
    request = generation.receive(parse.message, services().settings, services().gate)
    model = services().models.get(request.model)
    prompts = services().prompts(model)
    chat = request.chat(prompts.variables, prompts.has_thoughts)
    with generation.names_of(chat):
        ready = prompts.prepare(chat)
        identifier = f"msg_{uuid.uuid4().hex}"
        job = f"{identifier}-0"
        answer = Answer(ready.parser(), partial(model.cancel, job), chat.include_reasoning)
        head = render.Head(identifier, model.config.name, len(ready.token_ids), tuple(chat.stop))
        message = render.MessageRender(head, answer)
        tokens = [ready.token_ids]
        submitted = generation.submit(
            chat, model, tokens, [job], chat.stream, services().settings, ready.fit
        )
    if request.stream:
        return services().answers.stream(submitted, message, NamedEvents())
    return services().answers.whole(
        submitted, lambda events: deque(message(events), maxlen=0), message.whole
    )


@blueprint.post("/count_tokens")
@declares(
    {200: bodies.TokenCount},
    body=parse.Conversation,
    errors=ERRORS,
    error=AnthropicErrorBody,
)
def count_tokens() -> flask.Response:
    """Count the tokens of a conversation as the model gets it."""
    request = generation.receive(parse.count, services().settings, services().gate)
    model = services().models.get(request.model)
    prompts = services().prompts(model)
    chat = request.chat(prompts.variables, prompts.has_thoughts)
    with generation.names_of(chat):
        token_ids = prompts.encode(chat, model.max_told)
    return json_response({"input_tokens": len(token_ids)})


def describe_model(model: engine.Engine) -> dict[str, Any]:
    try:
        max_seq_len = model.info.max_seq_len
    except engine.Refused:  # it is loading
        max_seq_len = None
    return render.model(model.config.name, model.model_dir.created, max_seq_len)
