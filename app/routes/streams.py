"""The route that resumes a stream, for clients that don't repeat their request."""

import flask
import werkzeug.exceptions

from switchyard.app.delivery.answers import event_position
from switchyard.app.delivery.framing import EVENTS
from switchyard.app.openapi.contract import declares
from switchyard.app.services import services

blueprint = flask.Blueprint("switchyard_streams", __name__, url_prefix="/v1")


@blueprint.get("/streams/<identifier>")
@declares({200: None, 204: None}, streams={EVENTS: str}, errors=(400, 404, 408, 429, 499, 503))
def resume_stream(identifier: str) -> flask.Response:
    """The events of a stream after its `Last-Event-ID`, or all of them; 204 if there are none.

    `identifier` is the `id` of the response. Only the client that sent the request may resume its
    stream, and only if the server keeps streams (`resume_timeout`).
    """
    of, position = event_position() or (identifier, 0)
    if of != identifier:
        raise werkzeug.exceptions.NotFound("Last-Event-ID belongs to another stream")
    return services().answers.resume(identifier, position)
