"""Health: liveness and readiness."""

from typing import Literal

import flask
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.errors import without_identifiers
from switchyard.app.http.body import json_response
from switchyard.app.openapi.contract import declares
from switchyard.app.services import services

REASONS: dict[engine.ModelState, str] = {
    "loading": "the model is loading",
    "draining": "the server is finishing its requests and accepts no new ones",
    "recovering": "the generator failed and is recovering; jobs are waiting",
    "hanging": "a step of the generator does not return",
    "stopped": "the server has shut down",
    "unloaded": "the model is not loaded",
    "failed": "the model could not be loaded",
}

blueprint = flask.Blueprint("switchyard_health", __name__)


class Live(TypedDict):
    status: Literal["live"]


class Ready(TypedDict):
    status: Literal["ready"]
    models: dict[str, engine.ModelState]


class Unready(TypedDict):
    status: Literal["unready"]
    models: dict[str, engine.ModelState]
    reasons: dict[str, str]
    progress: dict[str, float]


class Healthy(TypedDict):
    status: Literal["ok"]


class UnavailableDetail(TypedDict):
    code: Literal[503]
    message: str
    type: Literal["unavailable_error"]


class UnavailableBody(TypedDict):
    error: UnavailableDetail


@blueprint.get("/health/live")
@declares({200: Live}, who="public")
def live() -> flask.Response:
    """200 as long as the process responds."""
    return json_response({"status": "live"})


@blueprint.get("/health/ready")
@declares({200: Ready, 503: Unready}, who="public")
def ready() -> flask.Response:
    """200 once every model that is loaded at startup is warm, otherwise 503 with the reasons."""
    models = services().models
    found = [models.status(name) for name in models.names]
    states = {model.name: model.state for model in found}
    if models.is_ready:
        return json_response({"status": "ready", "models": states})
    reasons = {
        model.name: without_identifiers(str(model.error or REASONS[model.state]))
        for model in found
        if model.load == "start" and model.state != "ready"
    }
    progress = {
        model.name: round(model.progress, 3) for model in found if model.progress is not None
    }
    body = {"status": "unready", "models": states, "reasons": reasons, "progress": progress}
    return json_response(body, 503, {"Retry-After": "1"})


def why_unready() -> str | None:
    """Why the first unready model isn't ready, as in `/health/ready`; None if all are ready."""
    models = services().models
    found = (models.status(name) for name in models.names)
    states = (model.state for model in found if model.load == "start")
    return next((REASONS[state] for state in states if state != "ready"), None)


def unavailable(reason: str) -> flask.Response:
    """A 503 in llama.cpp's format, because llama.cpp's clients look for the message while a model
    loads.
    """
    message = "Loading model" if reason == REASONS["loading"] else reason
    error = {"code": 503, "message": message, "type": "unavailable_error"}
    return json_response({"error": error}, 503, {"Retry-After": "1"})
