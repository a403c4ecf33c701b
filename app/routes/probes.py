"""Health and version at the paths that load balancers and other servers' clients use."""

from typing import Literal

import flask
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import __version__
from switchyard.app.http.body import json_response
from switchyard.app.openapi.contract import declares
from switchyard.app.routes.health import Healthy, UnavailableBody, unavailable, why_unready
from switchyard.app.services import services
from switchyard.app.ui.files import PAGE, answer_file, wants_json, wants_page

TEXT = "text/plain"
OLLAMA = "Switchyard. For clients of Ollama's API: Ollama is running"

blueprint = flask.Blueprint("switchyard_health_probes", __name__)
# Paths that a host application may use itself. They are left out unless the API has a prefix.
short = flask.Blueprint("switchyard_health_short", __name__)
# Paths that always belong to a host application.
root = flask.Blueprint("switchyard_health_root", __name__)


class NimHealth(TypedDict):
    object: Literal["health.response"]
    message: str
    status: Literal["live", "ready"]


class KServeLive(TypedDict):
    live: Literal[True]


class KServeReady(TypedDict):
    ready: bool


class ServerVersion(TypedDict):
    version: str


class Server(TypedDict):
    name: Literal["switchyard"]
    version: str


@short.get("/health")
@declares({200: Healthy, 503: UnavailableBody}, who="public")
def health() -> flask.Response:
    """200 if `/health/ready` returns 200, otherwise 503, as in llama.cpp's server."""
    reason = why_unready()
    return json_response({"status": "ok"}) if reason is None else unavailable(reason)


@short.get("/ping")
@declares({200: None, 503: None}, who="public")
def ping() -> flask.Response:
    """The same status as `/health`, without a body, as in SageMaker and vLLM."""
    return flask.Response(status=200 if why_unready() is None else 503, mimetype="text/plain")


@short.get("/version")
@declares({200: ServerVersion})
def version() -> flask.Response:
    """The server's version, as in vLLM."""
    return json_response({"version": __version__})


@short.get("/api/hello")
@declares({200: None}, who="public")
def hello() -> flask.Response:
    """200 without a body. Claude Code sends `HEAD` to see whether a server answers."""
    return flask.Response(status=200, mimetype="text/plain")


@blueprint.get("/v1/health/live")
@declares({200: NimHealth}, who="public")
def nim_live() -> flask.Response:
    """200 as long as the process responds, as in NVIDIA's NIM."""
    return _nim("live")


@blueprint.get("/v1/health/ready")
@declares({200: NimHealth, 503: UnavailableBody}, who="public")
def nim_ready() -> flask.Response:
    """200 if `/health/ready` returns 200, otherwise 503, as in NVIDIA's NIM."""
    reason = why_unready()
    return _nim("ready") if reason is None else unavailable(reason)


@blueprint.get("/v2/health/live")
@declares({200: KServeLive}, who="public")
def kserve_live() -> flask.Response:
    """200 as long as the process responds, as in KServe's protocol."""
    return json_response({"live": True})


@blueprint.get("/v2/health/ready")
@declares({200: KServeReady, 503: KServeReady}, who="public")
def kserve_ready() -> flask.Response:
    """200 if `/health/ready` returns 200, otherwise 503, as in KServe's protocol."""
    is_ready = why_unready() is None
    headers = {} if is_ready else {"Retry-After": "1"}
    return json_response({"ready": is_ready}, 200 if is_ready else 503, headers)


@root.get("/")
@declares({200: Server, 304: None}, streams={PAGE: str, TEXT: str}, who="public")
def server() -> flask.Response:
    """The server's name and version; a browser gets the page, unless the `ui` setting is off.

    A client that accepts neither a page nor JSON gets a text by which Ollama's clients recognize
    the server. Some clients send `HEAD` to see whether a server answers.
    """
    settings = services().settings
    has_page = settings.ui
    if has_page and wants_page():
        response = answer_file("index.html")
    elif "ollama" in settings.formats and not (wants_page() or wants_json()):
        response = flask.Response(f"{OLLAMA}\n", mimetype=TEXT)
    else:
        response = json_response({"name": "switchyard", "version": __version__})
    if has_page or "ollama" in settings.formats:
        response.headers.add("Vary", "Accept")
    return response


@root.get("/favicon.ico")
@declares({204: None}, who="public")
def favicon() -> flask.Response:
    """No icon. Browsers request one automatically."""
    return flask.Response(status=204)


def _nim(status: Literal["live", "ready"]) -> flask.Response:
    body = {"object": "health.response", "message": f"Service is {status}.", "status": status}
    return json_response(body)
