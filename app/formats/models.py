"""The served models, at the path that OpenAI's and Anthropic's clients share."""

import functools
import operator
from collections.abc import Sequence
from typing import Any, Literal

import flask
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.errors import ErrorBody, without_identifiers
from switchyard.app.formats import codex
from switchyard.app.formats.format import Format, ModelWords, spoken
from switchyard.app.http.body import json_response
from switchyard.app.lifecycle.loads import Value, value_of
from switchyard.app.openapi.contract import declares
from switchyard.app.services import services


class ModelReplica(TypedDict):
    state: engine.ReplicaStatus
    jobs: int
    gpus: list[int]
    at: str | None
    pid: int | None
    restarts: int


class ModelMeta(TypedDict, total=False):
    device: str
    max_seq_len: int
    n_ctx: int
    n_ctx_train: int | None
    n_vocab: int
    cache_tokens: int
    cache_mode: str
    loras: list[str]
    replicas: list[ModelReplica]


class ModelRowStatus(TypedDict):
    value: Value
    load: engine.Policy
    progress: float | None
    failed: bool
    reason: str | None


class ModelBody(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    system_fingerprint: str
    max_model_len: int | None
    context_length: int | None
    meta: ModelMeta
    aliases: list[str]
    status: ModelRowStatus


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelBody]
    models: list[codex.CodexModel]
    presets: list[str]


def make_blueprint(formats: Sequence[Format]) -> flask.Blueprint:
    """The routes that list models, in OpenAI's format and in the given formats."""
    blueprint = flask.Blueprint("switchyard_openai_models", __name__, url_prefix="/v1")
    words_of = [format.words for format in formats if format.words and format.words.models]
    error = _either(ErrorBody, *(words.error for words in words_of))
    every = [words.models for words in words_of if words.models is not None]

    @blueprint.get("/models", strict_slashes=False)
    @declares({200: _either(ModelList, *(words.models for words in every))}, error=error)
    def list_models() -> flask.Response:
        """The served models, and the names of the presets. The `models` member is for Codex.

        Anthropic's clients, which use the same path, get Anthropic's format.
        """
        words = _spoken(formats)
        models = [services().models.get(name) for name in services().models.names]
        if words is not None:
            return json_response(words.listed([words.describe(m) for m in models]))
        for_codex = [_describe_to_codex(model, place) for place, model in enumerate(models)]
        data = [_describe(model) for model in models]
        presets = sorted(services().settings.presets)
        body = {"object": "list", "data": data, "models": for_codex, "presets": presets}
        return json_response(body)

    @blueprint.get("/models/<path:model>")
    @declares(
        {200: _either(ModelBody, *(words.model for words in every))}, errors=(404,), error=error
    )
    def retrieve_model(model: str) -> flask.Response:
        """One of the served models."""
        words, found = _spoken(formats), services().models.get(model)
        return json_response(_describe(found) if words is None else words.describe(found))

    return blueprint


def _spoken(formats: Sequence[Format]) -> ModelWords | None:
    words = spoken(formats)
    return None if words is None else words.models


def _either(*types: Any) -> Any:
    return functools.reduce(operator.or_, types)


def _describe_to_codex(model: engine.Engine, place: int) -> dict[str, Any]:
    template = services().template(model)
    return codex.describe(model, place, "reasoning_effort" in template.variables)


def _describe(model: engine.Engine) -> dict[str, Any]:
    name, context = model.config.name, model.context or None
    status = services().models.status(name)
    error = status.error if status.state != "ready" else None
    return {
        "id": name,
        "object": "model",
        "created": model.model_dir.created,
        "owned_by": "switchyard",
        "root": name,
        "parent": None,
        "system_fingerprint": model.model_dir.fingerprint,
        "max_model_len": context,
        "context_length": context,
        "meta": _meta(model),
        "aliases": list(status.aliases),
        "status": {
            "value": value_of(status.state),
            "load": status.load,
            "progress": status.progress,
            "failed": status.state == "failed",
            "reason": None if error is None else without_identifiers(str(error)),
        },
    }


def _meta(model: engine.Engine) -> dict[str, object]:
    """The properties that are known only once a model is loaded."""
    try:
        info = model.info
    except engine.Refused:
        return {}
    return {
        "device": info.device,
        "max_seq_len": info.max_seq_len,
        "n_ctx": info.max_seq_len,
        "n_ctx_train": model.model_dir.max_seq_len,
        "n_vocab": info.vocab_size,
        "cache_tokens": info.num_pages * info.page_size,
        "cache_mode": info.cache_mode,
        "loras": list(info.loras),
        "replicas": [
            {
                "state": one.status,
                "jobs": one.num_jobs,
                "gpus": list(one.gpus),
                "at": one.at or None,
                "pid": one.pid,
                "restarts": one.num_restarts,
            }
            for one in model.standing.replicas
        ],
    }
