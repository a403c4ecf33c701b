"""Passes requests below a host application's prefix on to a Switchyard server, unchanged."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial, update_wrapper
from typing import Any
from urllib.parse import quote

import flask
import werkzeug.exceptions

from switchyard.app import errors
from switchyard.app.config import Settings
from switchyard.app.delivery.watch import WatchedClient
from switchyard.app.exceptions import ClientGone
from switchyard.app.host.upstream import Incoming, Upstream
from switchyard.app.host.wait import check_silence
from switchyard.app.http import request_id
from switchyard.app.http.body import read_bytes
from switchyard.app.services import BLUEPRINT

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
MAX_BODY = 32 << 20  # bytes, if no setting gives a limit; the server's own limit is lower
VIA = "1.1 switchyard"
# Characters that are passed on unchanged; bytes beyond ASCII are quoted.
QUERY = "%!$&'()*+,/:;=?@[]~"
# Media types of streams that have heartbeats.
STREAMS = ("text/event-stream", "application/x-ndjson")

# Headers that are not passed on: they concern one connection (RFC 9110, 7.6.1), or the server that
# writes them.
OWN = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
    *("transfer-encoding", "upgrade", "host", "content-length", "expect", "server", "date"),
    *("cookie", "x-forwarded-for", "forwarded", "x-real-ip", "via", "x-request-id"),
}


def make_passing(
    upstream: Upstream,
    settings: Settings,
    url_prefix: str,
    before_request: Sequence[Callable[[], Any]],
) -> flask.Blueprint:
    """A blueprint that passes on requests to all paths below `url_prefix`, except for WebSockets.

    A request keeps its own API key. The application's key is only for `generate`, `stream` and
    `count`.
    """
    api = flask.Blueprint(BLUEPRINT, __name__, url_prefix=url_prefix)
    for call in before_request:
        api.before_request(call)
    api.add_url_rule(
        "/<path:path>",
        "pass",
        # Flask extensions read the view's name.
        update_wrapper(partial(_pass, upstream, settings), _pass),
        methods=METHODS,
    )
    errors.register(api, errors.describe)
    request_id.register(api)
    return api


class PassedBody(Iterator[bytes]):
    """The body of a response that is passed on. Closing it makes the server cancel the rest of the
    generation.
    """

    def __init__(self, answer: Incoming) -> None:
        self._answer = answer

    def __next__(self) -> bytes:
        """Raises engine.Closed if the connection to the server is lost, so that the client notices
        that the body is incomplete.
        """
        try:
            if data := self._answer.read():
                return data
        except ClientGone:
            pass
        self.close()
        raise StopIteration

    def close(self) -> None:
        self._answer.close()


def _pass(upstream: Upstream, settings: Settings, path: str) -> flask.Response:
    if ".." in path.split("/"):  # such a path would leave the path in the server's URL
        raise werkzeug.exceptions.NotFound
    request = flask.request
    client = WatchedClient(request.environ, serves_half_closed=False)
    client.limit_sends(settings.send_timeout)
    with client.receiving(settings.body_timeout):
        data = read_bytes(settings.max_body_bytes or MAX_BODY)
    query = f"?{quote(request.query_string, safe=QUERY)}" if request.query_string else ""

    has_heartbeats = False

    def look(silent: float) -> None:
        client.check()
        if has_heartbeats:
            check_silence(silent, settings)

    target = f"/{quote(path, safe='/:@!$&()*+,;=~')}{query}"
    answer = upstream.send(request.method, target, _headers(request), data, look)
    has_heartbeats = answer.headers.get("Content-Type", "").startswith(STREAMS)
    told = [(k, v) for k, v in answer.headers.items() if _is_passed(k) or k == "Content-Length"]
    return flask.Response(PassedBody(answer), answer.status, told, direct_passthrough=True)


def _headers(request: flask.Request) -> dict[str, str]:
    """The headers to pass on. They show the server that the request was passed on and may come from
    anywhere. Without them, the server would treat the request as one from a process on the host's
    machine.
    """
    headers = {name: value for name, value in request.headers if _is_passed(name)}
    if headers.get("Origin", "").partition("://")[2] == request.host:
        # The page is the host's own, but the server doesn't know the host's name.
        del headers["Origin"]
    before = request.headers.getlist("X-Forwarded-For")
    headers["X-Forwarded-For"] = ", ".join([*before, request.remote_addr or "unknown"])
    headers["Via"] = VIA
    headers[request_id.HEADER] = request_id.request_id()
    return headers


def _is_passed(name: str) -> bool:
    return name.lower() not in OWN
