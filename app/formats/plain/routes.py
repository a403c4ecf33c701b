"""The routes of `/generate`, for POST and GET."""

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import flask
import werkzeug.exceptions

from switchyard.app.delivery import submit as generation
from switchyard.app.delivery.framing import SERVER_SENT_EVENTS, choose_framing, media_types
from switchyard.app.formats.plain import parse, render
from switchyard.app.formats.text.answer import answer_text
from switchyard.app.http import origins
from switchyard.app.http.body import is_curls, parse_json
from switchyard.app.http.form import parse_form, read_query
from switchyard.app.leases import model_of
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.services import repeatable, services

FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")

STREAMS = media_types(render.GenerateChunk | render.GenerateEnd)

blueprint = flask.Blueprint("switchyard_plain", __name__)
# A page of any origin can make a browser send a form or a GET without a CORS preflight.


@blueprint.before_request
def _check_origin() -> None:
    origins.check(services().settings.cors_origins)


@blueprint.post("/generate")
@declares(
    {200: render.GenerateBody},
    body=parse.Generate,
    is_form=True,
    streams=STREAMS,
    errors=GENERATION,
    example={"prompt": "Once upon a time", "max_tokens": 64},
)
@repeatable
def create_text() -> flask.Response:
    """Continue a prompt that is sent as JSON or as a form."""
    return _answer(_receive(_read_body))


@blueprint.get("/generate")
@declares(
    {200: render.GenerateBody, 204: None},
    query=parse.Generate,
    streams=STREAMS,
    errors=GENERATION,
    example={"prompt": "Once upon a time", "max_tokens": 64},
)
def get_text() -> flask.Response:
    """Continue a prompt from the query string. An EventSource needs `stream=true`."""
    if flask.request.method == "HEAD":  # a HEAD request must not start a generation
        raise werkzeug.exceptions.MethodNotAllowed(["GET", "POST"])
    if "Last-Event-ID" in flask.request.headers and not services().settings.resume_timeout:
        # An EventSource reconnects whenever a stream ends; status 204 stops it.
        return flask.Response(status=204)
    response = _answer_query()
    response.headers["Cache-Control"] = "no-store"
    return response


@repeatable
def _answer_query() -> flask.Response:
    return _answer(_receive(_read_query))


def _receive(read: Callable[[bytes], dict[str, Any]]) -> parse.Generate:
    return generation.receive(parse.generate, services().settings, services().gate, read)


def _read_query(data: bytes) -> dict[str, Any]:
    return read_query(parse.Generate)


def _read_body(data: bytes) -> dict[str, Any]:
    if flask.request.mimetype in FORMS and not is_curls(data):
        return parse_form(parse.Generate, data)
    return parse_json(data)


def _answer(request: parse.Generate) -> flask.Response:
    model = model_of(request.model)
    identifier = f"gen-{uuid.uuid4().hex}"
    framing = choose_framing(flask.request.accept_mimetypes) if request.stream else None
    if framing is SERVER_SENT_EVENTS:
        framing = render.EVENTS
        if not services().settings.resume_timeout:
            # One event id is enough to make a reconnecting EventSource send Last-Event-ID.
            framing = replace(framing, opening=f"id: {identifier}\n".encode())
    make_render = partial(render.GenerateRender, identifier=identifier, model=model.config.name)
    return answer_text(request, identifier, make_render, framing)
