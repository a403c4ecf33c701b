"""The route of the WebSocket: the checks before the handshake, and the limit on open WebSockets."""

import flask
import flask_sock
import simple_websocket
import werkzeug.exceptions
import wsproto.utilities

from switchyard import engine
from switchyard.app.errors import respond
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.websocket.connection import Connection, SharedSocket
from switchyard.app.formats.websocket.session import Session
from switchyard.app.http import origins
from switchyard.app.http.client import Client
from switchyard.app.http.identity import share_of
from switchyard.app.openapi.contract import needs
from switchyard.app.services import services

SUBPROTOCOL = "realtime"
RETRY = 10.0  # seconds; a guess, because the end of another WebSocket is unknown

blueprint = flask.Blueprint("switchyard_websocket", __name__, url_prefix="/v1")


@blueprint.record
def _offer(state: flask.blueprints.BlueprintSetupState) -> None:
    """Accepts the subprotocol that browsers offer along with their API key.

    A browser closes the connection if no subprotocol is accepted. The key is never sent back.
    """
    state.app.config.setdefault("SOCK_SERVER_OPTIONS", {}).setdefault("subprotocols", [SUBPROTOCOL])


@blueprint.before_request
def _admit() -> None:
    """Admits a client before the handshake, so that a refusal is an HTTP response."""
    settings = services().settings
    origins.check(settings.cors_origins)
    environ = flask.request.environ
    name = next((n for n in ("gunicorn.socket", "werkzeug.socket") if n in environ), None)
    if name is None:
        raise werkzeug.exceptions.NotImplemented("the WSGI server exposes no socket")
    models = services().models
    if models.is_over or models.served().load == "start":
        models.get().check_room(0)
    address = share_of(flask.request)
    if (refusal := services().websockets.take(address)) is not None:
        raise engine.Full(refusal, RETRY)
    flask.g.websocket_of = address
    Client(environ).limit_sends(settings.send_timeout)
    environ[name] = SharedSocket(environ[name])
    # No compression, because for small messages it saves little and costs more than all other work.
    environ.pop("HTTP_SEC_WEBSOCKET_EXTENSIONS", None)


@blueprint.teardown_request
def _leave(error: BaseException | None) -> None:
    if (address := flask.g.pop("websocket_of", None)) is not None:
        services().websockets.give_back(address)


@blueprint.errorhandler(wsproto.utilities.RemoteProtocolError)
def _refuse(error: wsproto.utilities.RemoteProtocolError) -> flask.Response:
    fault = BadRequest(f"no WebSocket handshake: {error}", None, "invalid_handshake")
    return respond(services().describe, fault)


@flask_sock.Sock().route("/stream", bp=blueprint)  # type: ignore[untyped-decorator]
@needs("user")
def stream(websocket: simple_websocket.Server) -> None:
    settings = services().settings
    connection = Connection(websocket, settings.max_body_bytes, settings.heartbeat)
    Session(connection, settings.websocket_timeout).run()
