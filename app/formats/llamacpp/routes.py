"""llama.cpp's own endpoints: for completions, and for what its server is like."""

import uuid
from functools import partial

import flask

from switchyard.app.delivery import submit as generation
from switchyard.app.formats.llamacpp import bodies, parse, render
from switchyard.app.formats.text.answer import answer_text
from switchyard.app.http.body import json_response
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.services import repeatable, services

blueprint = flask.Blueprint("switchyard_llamacpp", __name__)


@blueprint.post("/completion")
@declares(
    {200: render.LlamaCppBody},
    body=parse.LlamaCpp,
    streams={render.EVENTS.mimetype: render.LlamaCppChunk | render.LlamaCppBody},
    errors=GENERATION,
    example={"prompt": "Once upon a time", "n_predict": 64},
)
@repeatable
def complete() -> flask.Response:
    """Continue a prompt, as llama.cpp's server has it."""
    request = generation.receive(parse.completion, services().settings, services().gate)
    name = services().models.get(request.model).config.name
    make_render = partial(render.LlamaCppRender, model=name, stop_strings=request.stop)
    framing = render.EVENTS if request.stream else None
    return answer_text(request, f"completion-{uuid.uuid4().hex}", make_render, framing)


@blueprint.get("/props")
@declares({200: bodies.Props}, errors=(503,))
def props() -> flask.Response:
    """What the server is like, as llama.cpp's says it."""
    return json_response(bodies.props(services().models.get()))


@blueprint.get("/slots")
@declares({200: list[bodies.Slot]}, errors=(503,))
def slots() -> flask.Response:
    """Which of the places in the batch are taken, as llama.cpp's server says it."""
    return json_response(list(bodies.slots(services().models.get())))
