"""llama.cpp's own routes: completions, infill, and the server's properties."""

import flask

from switchyard.app.delivery import submit as generation
from switchyard.app.formats.llamacpp import bodies, gap, parse, render, shapes
from switchyard.app.formats.llamacpp.answer import answer_prompts
from switchyard.app.http.body import json_response
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.services import repeatable, services

blueprint = flask.Blueprint("switchyard_llamacpp", __name__)


@blueprint.post("/completion")
@declares(
    {200: shapes.LlamaCppBody | list[shapes.LlamaCppBody]},
    body=parse.LlamaCpp,
    streams={render.EVENTS.mimetype: shapes.LlamaCppChunk | shapes.LlamaCppBody},
    errors=GENERATION,
    example={"prompt": "Once upon a time", "n_predict": 64},
)
@repeatable
def complete() -> flask.Response:
    """Continue one or several prompts, as in llama.cpp's server."""
    return answer_prompts(
        generation.receive(parse.completion, services().settings, services().gate)
    )


@blueprint.post("/infill")
@declares(
    {200: shapes.LlamaCppBody},
    body=gap.Infill,
    streams={render.EVENTS.mimetype: shapes.LlamaCppChunk | shapes.LlamaCppBody},
    errors=GENERATION,
    example={"input_prefix": "def add(a, b):\n", "input_suffix": "\nprint(add(1, 2))\n"},
)
@repeatable
def fill() -> flask.Response:
    """Fill a gap in a text, as in llama.cpp's server."""
    here = services()
    return answer_prompts(generation.receive(gap.gap, here.settings, here.gate))


@blueprint.get("/props")
@declares({200: bodies.Props}, errors=(503,))
def props() -> flask.Response:
    """The server's properties, as in llama.cpp's server."""
    return json_response(bodies.props(services().models.get()))


@blueprint.get("/slots")
@declares({200: list[bodies.Slot]}, errors=(503,))
def slots() -> flask.Response:
    """The slots of the batch, busy or free, as in llama.cpp's server."""
    return json_response(list(bodies.slots(services().models.get())))
