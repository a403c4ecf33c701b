"""The WebSocket, as far as it is still HTTP."""

import flask
import flask_sock
import simple_websocket
import werkzeug.exceptions
import wsproto.utilities

from switchyard import engine
from switchyard.app import origins
from switchyard.app.errors import respond
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.websocket.connection import Connection, SharedSocket
from switchyard.app.formats.websocket.session import Session
from switchyard.app.http.client import Client
from switchyard.app.services import services

RETRY = 10.0  # seconds; nobody knows when another client leaves

blueprint = flask.Blueprint("switchyard_websocket", __name__, url_prefix="/v1")


@blueprint.before_request
def _admit() -> None:
    """Before the handshake, so that a refusal is an answer in HTTP."""
    settings = services().settings
    origins.check(settings.cors_origins)
    environ = flask.request.environ
    name = next((n for n in ("gunicorn.socket", "werkzeug.socket") if n in environ), None)
    if name is None:
        raise werkzeug.exceptions.NotImplemented("the server under this one shows no socket")
    services().models.get().check_room(0)
    if not services().websockets.acquire(blocking=False):
        number = settings.max_websockets
        raise engine.Full(f"{number} WebSockets are open, as many as this server takes", RETRY)
    flask.g.has_websocket = True
    Client(environ).limit_sends(settings.send_timeout)
    environ[name] = SharedSocket(environ[name])
    # No compression: of messages this small it saves little, and costs more than all else.
    environ.pop("HTTP_SEC_WEBSOCKET_EXTENSIONS", None)


@blueprint.teardown_request
def _leave(error: BaseException | None) -> None:
    if flask.g.pop("has_websocket", False):
        services().websockets.release()


@blueprint.errorhandler(wsproto.utilities.RemoteProtocolError)
def _refuse(error: wsproto.utilities.RemoteProtocolError) -> flask.Response:
    return respond(BadRequest(f"no WebSocket handshake: {error}", None, "invalid_handshake"))


@flask_sock.Sock().route("/stream", bp=blueprint)  # type: ignore[untyped-decorator]
def stream(websocket: simple_websocket.Server) -> None:
    settings = services().settings
    Session(Connection(websocket, settings.max_body_bytes, settings.heartbeat)).run()
