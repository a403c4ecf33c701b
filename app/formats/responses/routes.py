"""The routes of OpenAI's Responses API."""

import time
import uuid
from collections.abc import Mapping

import flask

from switchyard.app.chat.answer import Answer
from switchyard.app.delivery.render import Render
from switchyard.app.delivery.submit import receive
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.answer import answer_chat
from switchyard.app.formats.count import InputTokens, answer_count
from switchyard.app.formats.logprobs import TokenNames
from switchyard.app.formats.responses import bodies, parse, render, stored
from switchyard.app.formats.responses.stored import StoredConversation
from switchyard.app.http.body import json_response
from switchyard.app.http.identity import owner_of
from switchyard.app.leases import model_of
from switchyard.app.openapi.contract import GENERATION, JSON, declares
from switchyard.app.services import repeatable, services

blueprint = flask.Blueprint("switchyard_responses", __name__, url_prefix="/v1/responses")


@blueprint.post("")
@declares(
    {200: bodies.ResponseBody},
    body=parse.ResponseRequest,
    streams={render.EVENTS.mimetype: bodies.ResponseEvent},
    errors=GENERATION,
    example={"input": "Hello!", "max_output_tokens": 64},
)
@repeatable
def create_response() -> flask.Response:
    """Answer a conversation, in the format of OpenAI's Responses API."""
    request = receive(parse.response, services().settings, services().gate)
    conversation = StoredConversation(request, services())
    chat = request.chat(conversation.messages)
    model = model_of(chat.model)
    identifier = f"resp_{uuid.uuid4().hex}"
    echo = {**request.echo(), "store": conversation.is_stored}
    if services().prompts(model).max_calls(chat) == 1:
        echo["parallel_tool_calls"] = False
    head = render.ResponseHead(identifier, int(time.time()), model.config.name, echo)

    def make_render(prompt: tuple[int, ...], answers: Mapping[str, Answer]) -> Render:
        [answer] = answers.values()
        names = TokenNames(model.tokenizer, by_id=False) if request.wants_logprobs else None
        return conversation.stored(render.ResponseRender(head, answer, names), identifier)

    return answer_chat(chat, identifier, make_render, render.EVENTS if chat.stream else None)


@blueprint.get("/<identifier>")
@declares({200: bodies.ResponseBody}, errors=(400, 404))
def get_response(identifier: str) -> flask.Response:
    """A stored response of this client."""
    if flask.request.args.get("stream", "false") != "false":
        raise BadRequest("stream: a stored response can't be streamed", "stream")
    return flask.Response(stored.find(services().stored, identifier).body, mimetype=JSON)


@blueprint.delete("/<identifier>")
@declares({200: bodies.DeletedBody}, errors=(404,))
def delete_response(identifier: str) -> flask.Response:
    """Delete a stored response of this client. Responses that continue it keep their
    conversation.
    """
    if not services().stored.remove(identifier, owner_of(flask.request)):
        raise stored.not_found(identifier)
    return json_response({"id": identifier, "object": "response", "deleted": True})


@blueprint.post("/input_tokens")
@declares(
    {200: InputTokens}, body=parse.ResponseRequest, errors=(404, 503), example={"input": "Hello!"}
)
def count_response_tokens() -> flask.Response:
    """Count the tokens of a response's prompt."""
    request = receive(parse.response, services().settings, services().gate)
    return answer_count(request.chat(StoredConversation(request, services()).messages))
