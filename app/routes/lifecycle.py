"""Routes that load, swap and unload models, for operators."""

import logging
from collections.abc import Mapping
from typing import Any

import flask
import werkzeug.exceptions
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.delivery.submit import receive
from switchyard.app.http.body import json_response
from switchyard.app.http.identity import author_of, is_operator
from switchyard.app.lifecycle.changes import ModelChange, ModelName, swap
from switchyard.app.lifecycle.loads import (
    LoadDone,
    ModelStatusBody,
    begun,
    events_of_load,
)
from switchyard.app.openapi.contract import declares
from switchyard.app.request.validation import validate
from switchyard.app.services import services

audit = logging.getLogger("switchyard.audit")

EVENTS = "text/event-stream"
ERRORS = (404, 409)
LOAD_ERRORS = (*ERRORS, 503)
EXAMPLE = {"model": "demo"}

blueprint = flask.Blueprint("switchyard_admin_models", __name__, url_prefix="/admin")


class AliasBody(TypedDict):
    alias: str
    model: str
    before: str | None


@blueprint.post("/models/<path:name>")
@declares(
    {200: None},
    body=ModelChange,
    streams={EVENTS: ModelStatusBody | LoadDone},
    errors=LOAD_ERRORS,
    example={"cache_tokens": 32768},
    who="operator",
    counts=False,
)
def change_model(name: str) -> flask.Response:
    """Load a model, or swap it for another directory or other settings.

    Settings that the body omits don't change. Running requests finish on the old engine, which runs
    alongside the new one if memory allows. The load continues if the client leaves the stream.
    """
    check_operator()
    request = receive(
        lambda body: validate(ModelChange, body), services().settings, services().gate
    )
    load = swap(name, request)
    begun(load)
    return flask.Response(events_of_load(load), mimetype=EVENTS)


@blueprint.delete("/models/<path:name>")
@declares({202: ModelStatusBody}, errors=ERRORS, who="operator")
def unload_named(name: str) -> flask.Response:
    """Unload a model after its last job, or after `drain` seconds.

    `drain` is in the query string; by default it is the model's `drain` setting.
    """
    check_operator()
    drain = _drain_of(flask.request.args)
    audit.warning("%s: unload %s", author_of(flask.request), name)
    services().models.unload(name, drain)
    return json_response({"model": name, "status": "draining", "progress": None}, 202)


def _drain_of(query: Mapping[str, str]) -> float | None:
    try:
        drain = float(query["drain"]) if "drain" in query else None
    except ValueError:
        drain = -1.0
    if drain is not None and not 0 <= drain <= 86400:
        raise werkzeug.exceptions.BadRequest("drain must be a number of seconds, from 0 to 86400")
    return drain


@blueprint.put("/aliases/<path:alias>")
@declares(
    {200: AliasBody},
    body=ModelName,
    errors=(404, 409),
    example=EXAMPLE,
    who="operator",
    counts=False,
)
def point_alias(alias: str) -> flask.Response:
    """Make an alias refer to a model, beginning with the next request."""
    check_operator()
    models = services().models
    request = receive_change(ModelName)
    try:
        engine.check_alias(alias)
    except ValueError as error:
        raise werkzeug.exceptions.BadRequest(f"alias: {error}") from None
    if alias in models.names:
        raise werkzeug.exceptions.Conflict(f"{alias[:100]!r} is a model's own name")
    before = models.point(alias, request.model)
    model = models.served(alias).config.name
    audit.warning("%s: set alias %s to %s", author_of(flask.request), alias, model)
    return json_response({"alias": alias, "model": model, "before": before})


def receive_change(kind: Any) -> Any:
    return receive(lambda body: validate(kind, body), services().settings, services().gate)


def check_operator() -> None:
    if not is_operator(flask.request):
        raise werkzeug.exceptions.Forbidden(
            "only an admin's API key (or, without keys, a process on the server's own machine) may"
            " change what is loaded"
        )
