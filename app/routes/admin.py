"""The route that drains the server, for operators."""

import logging
from typing import Literal

import flask
import werkzeug.exceptions
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard.app.http.body import json_response
from switchyard.app.http.identity import author_of, is_operator
from switchyard.app.openapi.contract import declares
from switchyard.app.services import services

audit = logging.getLogger("switchyard.audit")

blueprint = flask.Blueprint("switchyard_admin", __name__)


class DrainBegun(TypedDict):
    status: Literal["draining"]


@blueprint.post("/admin/drain")
@declares({202: DrainBegun}, errors=(501,), who="operator")
def drain() -> flask.Response:
    """Drain the server as SIGTERM does: refuse new work, finish running jobs within `grace`, and
    exit.
    """
    if not is_operator(flask.request):
        raise werkzeug.exceptions.Forbidden(
            "only an admin's API key (or, without keys, a process on the server's own machine) may"
            " drain the server"
        )
    terminate = services().terminate
    if terminate is None:
        raise werkzeug.exceptions.NotImplemented("this server can only be stopped by a signal")
    audit.warning("%s: drain", author_of(flask.request))
    services().models.drain()
    terminate()
    return json_response({"status": "draining"}, 202)
