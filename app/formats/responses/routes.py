"""The endpoint: parse, submit, answer."""

import time
import uuid
from collections import deque
from functools import partial
from typing import Any

import flask

from switchyard.app.chat.answer import Answer
from switchyard.app.delivery import submit as generation
from switchyard.app.errors import describe
from switchyard.app.formats.responses import bodies, parse, render
from switchyard.app.http.body import dumps
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.services import repeatable, services

blueprint = flask.Blueprint("switchyard_responses", __name__, url_prefix="/v1/responses")


class ResponseEvents:
    """Server-sent events, each named by its type. A failure is told by `response`'s last."""

    mimetype = "text/event-stream"
    heartbeat = b": heartbeat\n\n"
    end = b""

    def __init__(self, response: render.ResponseRender) -> None:
        self._response = response

    def frame(self, body: dict[str, Any], text: str) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (str(body["type"]).encode(), dumps(body))

    def error(self, error: Exception) -> bytes:
        bodies = self._response.failed(describe(error)[1]["error"]["message"])
        return b"".join(self.frame(body, text) for body, text in bodies)


@blueprint.post("")
@declares(
    {200: bodies.ResponseBody},
    body=parse.ResponseRequest,
    streams={ResponseEvents.mimetype: bodies.ResponseEvent},
    errors=GENERATION,
)
@repeatable
def create_response() -> flask.Response:
    """Answer a conversation, in the shape of OpenAI's Responses."""
    request = generation.receive(parse.response, services().settings, services().gate)
    chat = request.chat()
    model = services().models.get(chat.model)
    with generation.names_of(chat):
        ready = services().prompts(model).prepare(chat)
        identifier = f"resp_{uuid.uuid4().hex}"
        job = f"{identifier}-0"
        answer = Answer(ready.parser(), partial(model.cancel, job))
        head = render.Head(identifier, int(time.time()), model.config.name, request.echo())
        response = render.ResponseRender(head, answer)
        submitted = generation.submit(
            chat, model, [ready.token_ids], [job], chat.stream, services().settings, ready.fit
        )
    if chat.stream:
        framing = ResponseEvents(response)
        return services().answers.stream(submitted, response, framing)
    return services().answers.whole(
        submitted, lambda events: deque(response(events), maxlen=0), response.whole
    )
