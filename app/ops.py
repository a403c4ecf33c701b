"""Is the server alive, and can it take work?"""

import flask

from app.body import json_response
from app.services import services

blueprint = flask.Blueprint("switchyard_ops", __name__)


@blueprint.get("/health/live")
def live() -> flask.Response:
    """200 as long as the process answers."""
    return json_response({"status": "live"})


@blueprint.get("/health/ready")
def ready() -> flask.Response:
    """200 once every model is warm and takes jobs, else 503 and the reason."""
    models = services().models
    states = {name: models.get(name).state for name in models.names}
    if all(state == "ready" for state in states.values()):
        return json_response({"status": "ready", "models": states})
    errors = {name: str(e) for name in models.names if (e := models.get(name).error)}
    body = {"status": "unready", "models": states, "errors": errors}
    return json_response(body, 503, {"Retry-After": "1"})
