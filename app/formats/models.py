"""The models that are served, at the one path that OpenAI's and Anthropic's clients ask for."""

import functools
import operator
from collections.abc import Sequence
from typing import Any, Literal

import flask
from typing_extensions import TypedDict  # which pydantic needs before Python 3.12

from switchyard import engine
from switchyard.app.errors import ErrorBody
from switchyard.app.formats.format import Format, spoken
from switchyard.app.http.body import json_response
from switchyard.app.openapi.contract import declares
from switchyard.app.services import services


class ModelMeta(TypedDict, total=False):
    device: str
    max_seq_len: int
    cache_tokens: int
    cache_mode: str
    loras: list[str]


class ModelBody(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    meta: ModelMeta


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelBody]


def make_blueprint(formats: Sequence[Format]) -> flask.Blueprint:
    """In the words of any of these formats."""
    blueprint = flask.Blueprint("switchyard_models", __name__, url_prefix="/v1")
    every = [format.words for format in formats if format.words is not None]
    error = _either(ErrorBody, *(words.error for words in every))

    @blueprint.get("/models")
    @declares({200: _either(ModelList, *(words.models for words in every))}, error=error)
    def list_models() -> flask.Response:
        """The models that are served.

        In Anthropic's shape for its clients, which ask for the same path.
        """
        words, names = spoken(formats), services().models.names
        if words is None:
            return json_response({"object": "list", "data": [_describe(name) for name in names]})
        models = [words.describe_model(services().models.get(name)) for name in names]
        return json_response(words.list_models(models))

    @blueprint.get("/models/<path:model>")
    @declares(
        {200: _either(ModelBody, *(words.model for words in every))}, errors=(404,), error=error
    )
    def retrieve_model(model: str) -> flask.Response:
        """One of the models."""
        words = spoken(formats)
        if words is None:
            return json_response(_describe(model))
        return json_response(words.describe_model(services().models.get(model)))

    return blueprint


def _either(*types: Any) -> Any:
    return functools.reduce(operator.or_, types)


def _describe(name: str) -> dict[str, Any]:
    model = services().models.get(name)
    return {
        "id": name,
        "object": "model",
        "created": model.model_dir.created,
        "owned_by": "switchyard",
        "meta": _meta(model),
    }


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
