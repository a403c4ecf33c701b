"""Ollama's routes."""

from typing import Any, NoReturn

import flask
import werkzeug.exceptions

from switchyard import __version__, engine
from switchyard.app.delivery.submit import receive
from switchyard.app.formats.ollama import bodies, models, parse
from switchyard.app.formats.ollama.answer import answer_ollama, name_of, one_line
from switchyard.app.formats.ollama.errors import BLUEPRINT, OllamaErrorBody
from switchyard.app.formats.ollama.options import OllamaDefaults
from switchyard.app.formats.ollama.render import LINES
from switchyard.app.http.body import json_response
from switchyard.app.openapi.contract import GENERATION, declares
from switchyard.app.request.validation import Request, validate
from switchyard.app.services import repeatable, services

VERSION = "0.12.11"  # the version of Ollama; clients use no newer part of its API
DEFAULTS = ("temperature", "top_k", "top_p", "repetition_penalty", "repetition_penalty_range")

blueprint = flask.Blueprint(BLUEPRINT, __name__, url_prefix="/api")


@blueprint.post("/chat")
@declares(
    {200: bodies.OllamaChatBody},
    body=parse.ChatRequest,
    streams={LINES.mimetype: bodies.OllamaChatBody},
    errors=(*GENERATION, 409, 501),
    error=OllamaErrorBody,
    example={
        "messages": [{"role": "user", "content": "Hello!"}],
        "stream": False,
        "num_predict": 64,
        "options": {"temperature": 0.7},
    },
)
@repeatable
def ollama_chat() -> flask.Response:
    """Answer a conversation, as in Ollama. The answer is streamed by default."""
    return answer_ollama(receive(parse.chat, services().settings, services().gate))


@blueprint.post("/generate")
@declares(
    {200: bodies.OllamaGenerateBody},
    body=parse.GenerateRequest,
    streams={LINES.mimetype: bodies.OllamaGenerateBody},
    errors=(*GENERATION, 409, 501),
    error=OllamaErrorBody,
    example={
        "prompt": "Why is the sky blue?",
        "stream": False,
        "num_predict": 64,
        "options": {"temperature": 0.7},
    },
)
@repeatable
def ollama_generate() -> flask.Response:
    """Answer a prompt, as in Ollama. The answer is streamed by default."""
    return answer_ollama(receive(parse.generate, services().settings, services().gate))


@blueprint.get("/version")
@declares({200: bodies.OllamaVersion}, error=OllamaErrorBody)
def ollama_version() -> flask.Response:
    """The version of Ollama that this API follows, and the server's own version."""
    return json_response({"version": VERSION, "switchyard": __version__})


@blueprint.get("/tags")
@declares({200: bodies.OllamaModels}, error=OllamaErrorBody)
def ollama_tags() -> flask.Response:
    """The served models, as Ollama lists them."""
    here = services().models
    return json_response({"models": [models.listed(here.get(name)) for name in here.names]})


@blueprint.get("/ps")
@declares({200: bodies.OllamaRunningModels}, error=OllamaErrorBody)
def ollama_ps() -> flask.Response:
    """The models that are loaded, as Ollama lists them."""
    here = services().models
    loaded = [here.get(name) for name in here.names if here.status(name).state == "ready"]
    told = []
    for model in loaded:
        try:
            told.append(models.running(model, here.status(model.config.name)))
        except engine.Refused:  # unloaded in the meantime
            continue
    return json_response({"models": told})


@blueprint.post("/show")
@declares(
    {200: bodies.OllamaShown},
    body=parse.ShowRequest,
    errors=(404, 503),
    error=OllamaErrorBody,
    example={},
)
def ollama_show() -> flask.Response:
    """A model's template, properties and capabilities, as Ollama shows them."""
    model = services().models.get(name_of(_receive(parse.ShowRequest).model))
    template, prompts = services().template(model), services().prompts(model)
    has = {
        "completion": True,
        "tools": bool(template.source),
        "thinking": prompts.has_thoughts,
        "insert": models.fills_gaps(model),
    }
    names = parse.ChatRequest.names_of_fields()
    defaults = {names[name]: OllamaDefaults.model_fields[name].default for name in DEFAULTS}
    capabilities = [name for name, is_there in has.items() if is_there]
    return json_response(models.shown(model, defaults, capabilities))


@blueprint.post("/pull")
@declares(
    {200: bodies.OllamaStatus},
    body=parse.ModelRequest,
    streams={LINES.mimetype: bodies.OllamaStatus},
    errors=(501,),
    error=OllamaErrorBody,
    example={"stream": False},
)
def ollama_pull() -> flask.Response:
    """Report success for a served model. This server downloads no models."""
    request = _receive(parse.ModelRequest)
    try:
        services().models.get(name_of(request.model))
    except engine.ModelNotFound as error:
        _refuse(f"downloads nothing, and {str(error).replace('does not exist', 'not found')}")
    return one_line({"status": "success"}, request.stream)


@blueprint.post("/embed")
@declares({}, errors=(501,), error=OllamaErrorBody)
def ollama_embed() -> flask.Response:
    """Not supported: this server offers no embeddings."""
    _refuse("offers no embeddings: its models only generate text")


@blueprint.post("/embeddings")
@declares({}, errors=(501,), error=OllamaErrorBody)
def ollama_embeddings() -> flask.Response:
    """Not supported: this server offers no embeddings."""
    _refuse("offers no embeddings: its models only generate text")


@blueprint.post("/push")
@declares({}, errors=(501,), error=OllamaErrorBody)
def ollama_push() -> flask.Response:
    """Not supported: this server uploads nothing."""
    _refuse("uploads nothing: copy the model's directory")


@blueprint.post("/create")
@declares({}, errors=(501,), error=OllamaErrorBody)
def ollama_create() -> flask.Response:
    """Not supported: models are directories that the configuration names."""
    _refuse("creates no models: name a directory in its configuration, or POST /admin/models/NAME")


@blueprint.post("/copy")
@declares({}, errors=(501,), error=OllamaErrorBody)
def ollama_copy() -> flask.Response:
    """Not supported: to give a model another name, define an alias."""
    _refuse("copies no models: PUT /admin/aliases/NAME gives a model another name")


@blueprint.delete("/delete")
@declares({}, errors=(501,), error=OllamaErrorBody)
def ollama_delete() -> flask.Response:
    """Not supported: this server deletes no files."""
    _refuse("deletes no models: DELETE /admin/models/NAME unloads one")


@blueprint.post("/blobs/<digest>")
@declares({}, errors=(501,), error=OllamaErrorBody)
def ollama_blob(digest: str) -> flask.Response:
    """Not supported: models are directories that the configuration names."""
    _refuse("accepts no files: put the model's files in a directory that its configuration names")


def _receive(kind: type[Request]) -> Request:
    def parse_body(body: dict[str, Any]) -> Request:
        return validate(kind, body)

    return receive(parse_body, services().settings, services().gate)


def _refuse(what: str) -> NoReturn:
    raise werkzeug.exceptions.NotImplemented(f"this server {what}")
