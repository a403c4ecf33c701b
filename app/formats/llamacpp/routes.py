"""llama.cpp's own endpoint for completions."""

import uuid
from functools import partial

import flask

from switchyard.app.delivery import submit as generation
from switchyard.app.formats.llamacpp import parse, render
from switchyard.app.formats.text.answer import answer_text
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.services import repeatable, services

blueprint = flask.Blueprint("switchyard_llamacpp", __name__)


@blueprint.post("/completion")
@declares(
    {200: render.LlamaCppBody},
    body=parse.LlamaCpp,
    streams={render.EVENTS.mimetype: render.LlamaCppChunk | render.LlamaCppBody},
    errors=GENERATION,
)
@repeatable
def complete() -> flask.Response:
    """Continue a prompt, as llama.cpp's server has it."""
    request = generation.receive(parse.completion, services().settings, services().gate)
    name = services().models.get(request.model).config.name
    make_render = partial(render.LlamaCppRender, model=name, stop_strings=request.stop)
    framing = render.EVENTS if request.stream else None
    return answer_text(request, f"completion-{uuid.uuid4().hex}", make_render, framing)
