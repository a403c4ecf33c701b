"""Routes of llama.cpp's router that load, unload and watch models."""

import logging
import threading
from typing import Literal

import flask
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.http.body import json_response
from switchyard.app.http.identity import author_of
from switchyard.app.lifecycle.changes import ModelName, named
from switchyard.app.lifecycle.loads import StatusEvent, begun, events_of_models
from switchyard.app.openapi.contract import declares
from switchyard.app.routes.lifecycle import (
    ERRORS,
    EVENTS,
    EXAMPLE,
    LOAD_ERRORS,
    check_operator,
    receive_change,
)
from switchyard.app.services import services

audit = logging.getLogger("switchyard.audit")

blueprint = flask.Blueprint("switchyard_admin_router", __name__, url_prefix="/models")


SOON = 5.0  # seconds; the trial of a directory takes one or two seconds
MAX_WATCHERS = 4  # each watcher holds a request thread
_watchers = threading.BoundedSemaphore(MAX_WATCHERS)


class RouterSuccess(TypedDict):
    success: Literal[True]


@blueprint.post("/load")
@declares(
    {200: RouterSuccess},
    body=ModelName,
    errors=LOAD_ERRORS,
    example=EXAMPLE,
    who="operator",
    counts=False,
)
def load_model_by_router() -> flask.Response:
    """Begin to load a model, as in llama.cpp's router."""
    check_operator()
    request = receive_change(ModelName)
    name = named(request.model)
    audit.warning("%s: load %s", author_of(flask.request), name)
    load = services().models.load(name)
    if load is not None:
        begun(load, SOON)
    return json_response({"success": True})


@blueprint.post("/unload")
@declares(
    {200: RouterSuccess},
    body=ModelName,
    errors=ERRORS,
    example=EXAMPLE,
    who="operator",
    counts=False,
)
def unload_model_by_router() -> flask.Response:
    """Begin to unload a model after its last job, as in llama.cpp's router."""
    check_operator()
    request = receive_change(ModelName)
    audit.warning("%s: unload %s", author_of(flask.request), request.model)
    services().models.unload(request.model)
    return json_response({"success": True})


@blueprint.get("/sse")
@declares({200: None}, streams={EVENTS: StatusEvent}, who="operator")
def watch_models() -> flask.Response:
    """The state of each model, and each change of state, as llama.cpp's router reports them."""
    check_operator()
    if not _watchers.acquire(blocking=False):
        raise engine.Full(
            f"{MAX_WATCHERS} clients are already watching the models, which is the maximum", 30.0
        )
    events = events_of_models(services().models, services().settings.heartbeat)
    response = flask.Response(events, mimetype=EVENTS)
    response.call_on_close(_watchers.release)
    return response
