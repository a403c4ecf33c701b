"""The models that are served, at the one path that OpenAI's and Anthropic's clients ask for."""

import flask

from switchyard import engine
from switchyard.app.errors import EitherErrorBody, expects_anthropic
from switchyard.app.formats import anthropic
from switchyard.app.formats.anthropic.bodies import AnthropicModel, AnthropicModelList
from switchyard.app.formats.openai import bodies, render
from switchyard.app.http.body import json_response
from switchyard.app.openapi.contract import declares
from switchyard.app.services import services

blueprint = flask.Blueprint("switchyard_models", __name__, url_prefix="/v1")


@blueprint.get("/models")
@declares({200: bodies.ModelList | AnthropicModelList}, error=EitherErrorBody)
def list_models() -> flask.Response:
    """The models that are served.

    In Anthropic's shape for its clients, which ask for the same path.
    """
    names = services().models.names
    models = [_describe_model(name) for name in names]
    return json_response((anthropic if expects_anthropic() else render).models(models))


@blueprint.get("/models/<path:model>")
@declares({200: bodies.ModelBody | AnthropicModel}, errors=(404,), error=EitherErrorBody)
def retrieve_model(model: str) -> flask.Response:
    """One of the models."""
    return json_response(_describe_model(model))


def _describe_model(name: str) -> dict[str, object]:
    model = services().models.get(name)
    if expects_anthropic():
        return anthropic.describe_model(model)
    return render.model(name, model.model_dir.created, _meta(model))


def _meta(model: engine.Engine) -> dict[str, object]:
    """What is known of a model once it is loaded."""
    try:
        info = model.info
    except engine.Refused:
        return {}
    return {
        "device": info.device,
        "max_seq_len": info.max_seq_len,
        "cache_tokens": info.num_pages * info.page_size,
        "cache_mode": info.cache_mode,
        "loras": list(info.loras),
    }
