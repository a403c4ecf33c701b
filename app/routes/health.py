"""Is the server alive, can it take work, and how to end it."""

from typing import Literal

import flask
import werkzeug.exceptions
from typing_extensions import TypedDict  # which pydantic needs before Python 3.12

from switchyard import engine
from switchyard.app.errors import without_identifiers
from switchyard.app.http.body import json_response
from switchyard.app.http.identity import is_operator
from switchyard.app.openapi.contract import declares
from switchyard.app.services import services

REASONS: dict[engine.State, str] = {
    "loading": "the model is loading",
    "draining": "the server finishes what it has and takes nothing new",
    "recovering": "the generator failed and is being brought back; jobs wait",
    "hanging": "a step of the generator does not return",
    "stopped": "the server has shut down",
}

blueprint = flask.Blueprint("switchyard_ops", __name__)


class Live(TypedDict):
    status: Literal["live"]


class Ready(TypedDict):
    status: Literal["ready"]
    models: dict[str, engine.State]


class Unready(TypedDict):
    status: Literal["unready"]
    models: dict[str, engine.State]
    reasons: dict[str, str]
    progress: dict[str, float]


class DrainBegun(TypedDict):
    status: Literal["draining"]


@blueprint.get("/health/live")
@declares({200: Live})
def live() -> flask.Response:
    """200 as long as the process answers."""
    return json_response({"status": "live"})


@blueprint.get("/health/ready")
@declares({200: Ready, 503: Unready})
def ready() -> flask.Response:
    """200 once every model is warm and takes jobs, else 503 and the reasons."""
    models = services().models
    states = {name: models.get(name).state for name in models.names}
    if all(state == "ready" for state in states.values()):
        return json_response({"status": "ready", "models": states})
    reasons = {
        name: without_identifiers(str(models.get(name).error or REASONS[state]))
        for name, state in states.items()
        if state != "ready"
    }
    progress = {
        name: round(share, 3) for name in states if (share := models.get(name).progress) is not None
    }
    body = {"status": "unready", "models": states, "reasons": reasons, "progress": progress}
    return json_response(body, 503, {"Retry-After": "1"})


@blueprint.post("/admin/drain")
@declares({202: DrainBegun}, errors=(501,))
def drain() -> flask.Response:
    """Take no more work, finish what runs within the grace, end the server; as SIGTERM does."""
    if not is_operator(flask.request):
        raise werkzeug.exceptions.Forbidden("only a process of the server's own machine may drain")
    terminate = services().terminate
    if terminate is None:
        raise werkzeug.exceptions.NotImplemented("this server ends by a signal only")
    services().models.drain()
    terminate()
    return json_response({"status": "draining"}, 202)
