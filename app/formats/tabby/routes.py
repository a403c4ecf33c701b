"""TabbyAPI's routes."""

import logging
import os
from typing import Any, NoReturn

import flask
import werkzeug.exceptions

from switchyard.app.delivery.submit import names_of, receive
from switchyard.app.formats.tabby import bodies, parse
from switchyard.app.http.body import json_response
from switchyard.app.http.identity import author_of, is_operator
from switchyard.app.lifecycle.changes import ModelChange, swap
from switchyard.app.lifecycle.loads import begun
from switchyard.app.openapi.contract import declares
from switchyard.app.request.validation import Request, validate
from switchyard.app.services import services

audit = logging.getLogger("switchyard.audit")

blueprint = flask.Blueprint("switchyard_tabby", __name__, url_prefix="/v1")


@blueprint.get("/model")
@declares({200: bodies.TabbyModel}, errors=(503,))
def current_model() -> flask.Response:
    """The default model, with its context, cache and template."""
    model = services().models.get()
    card = {**bodies.model_card(model), "parameters": bodies.parameters(model)}
    return json_response(card)


@blueprint.get("/model/list")
@declares({200: bodies.TabbyModelList})
def list_served_models() -> flask.Response:
    """The served models; operators also get the other directories in `models_dir`."""
    models = services().models
    cards = [bodies.model_card(models.get(name)) for name in models.names]
    if is_operator(flask.request):
        served = {os.path.realpath(models.served(name).config.path) for name in models.names}
        for name, path in services().settings.directories().items():
            if name not in models.names and os.path.realpath(path) not in served:
                cards.append(bodies.card_of(name, path))
    return json_response(bodies.listed(cards))


@blueprint.get("/lora")
@declares({200: bodies.TabbyLoraList})
def current_loras() -> flask.Response:
    """The model's LoRAs."""
    model = services().models.get()
    cards = [bodies.lora_card(lora, model) for lora in model.config.loras]
    return json_response(bodies.listed(cards))


@blueprint.get("/lora/list")
@declares({200: bodies.TabbyLoraList})
def list_loras() -> flask.Response:
    """All LoRAs, which are those of the default model."""
    return current_loras()


@blueprint.get("/template/list")
@declares({200: bodies.TabbyTemplateList})
def list_templates() -> flask.Response:
    """The model's own chat template, if it has one."""
    has_own = services().models.get().model_dir.chat_template is not None
    return json_response(bodies.listed([bodies.TEMPLATE] if has_own else []))


@blueprint.get("/auth/permission")
@declares({200: bodies.Permission})
def permission() -> flask.Response:
    """`admin` for a client that has an operator's rights and may drain the server; `api` for any
    other client.
    """
    return json_response({"permission": "admin" if is_operator(flask.request) else "api"})


@blueprint.post("/token/encode")
@declares(
    {200: bodies.TabbyTokens}, body=parse.TokenEncode, errors=(503,), example={"text": "Hello!"}
)
def encode_tokens() -> flask.Response:
    """Convert a text to tokens."""
    request = _receive(parse.TokenEncode)
    model = services().models.get()
    with names_of(request):
        token_ids = model.tokenizer.encode(
            request.text,
            model.max_told,
            add_bos=request.add_bos_token,
            parse_special=request.encode_special_tokens,
        )
    return json_response({"tokens": token_ids, "length": len(token_ids)})


@blueprint.post("/token/decode")
@declares(
    {200: bodies.TabbyText}, body=parse.TokenDecode, errors=(503,), example={"tokens": [5, 6]}
)
def decode_token_ids() -> flask.Response:
    """Convert tokens to text."""
    request = _receive(parse.TokenDecode)
    model = services().models.get()
    text = model.tokenizer.decode_given(request.tokens, model.max_told)
    if not request.decode_special_tokens:
        text = model.tokenizer.decode(request.tokens)
    return json_response({"text": text})


@blueprint.post("/model/load")
@declares(
    {200: None},
    body=parse.ModelLoad,
    streams={"text/event-stream": bodies.TabbyLoad},
    errors=(404, 409, 503),
    example={"name": "demo", "cache_size": 16384},
    who="operator",
    counts=False,
)
def load_model() -> flask.Response:
    """Load a model from the configuration or from `models_dir`, alongside other models if memory
    allows, and make it the default model.
    """
    _check_operator()
    request = _receive(parse.ModelLoad)
    load = swap(request.name, ModelChange(**request.settings), is_default=True)
    begun(load)
    return flask.Response(bodies.events_of_load(load), mimetype="text/event-stream")


@blueprint.post("/model/unload")
@declares({200: None}, errors=(409,), who="operator")
def unload_model() -> flask.Response:
    """Begin to unload the default model."""
    _check_operator()
    name = services().models.served().config.name
    audit.warning("%s: unload %s", author_of(flask.request), name)
    services().models.unload(name)
    return flask.Response(status=200)


@blueprint.post("/download")
@declares({}, errors=(501,))
def download_model() -> flask.Response:
    """Not supported: this server downloads nothing."""
    _refuse("downloads nothing: put the model's files in a directory that its configuration names")


def _receive(kind: type[Request]) -> Request:
    def parse_body(body: dict[str, Any]) -> Request:
        return validate(kind, body)

    return receive(parse_body, services().settings, services().gate)


def _check_operator() -> None:
    if not is_operator(flask.request):
        raise werkzeug.exceptions.Forbidden("only an operator may change what is loaded")


def _refuse(what: str) -> NoReturn:
    raise werkzeug.exceptions.NotImplemented(f"this server {what}")
