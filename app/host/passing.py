"""The API of a Switchyard server under a host application's prefix, passed through as it comes."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import flask
import werkzeug.exceptions

from switchyard.app import errors
from switchyard.app.config import Settings
from switchyard.app.delivery.watch import WatchedClient
from switchyard.app.exceptions import ClientGone
from switchyard.app.host.upstream import Incoming, Upstream
from switchyard.app.http import request_id
from switchyard.app.http.body import read_bytes

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
MAX_BODY = 32 << 20  # bytes, where the settings say none: the server's own limit is less
VIA = "1.1 switchyard"

# Of one connection, or of the server that writes it. RFC 9110, 7.6.1.
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
    """All paths below `url_prefix`, but for WebSockets. Requests have the key that they come with:
    the application's own is for what it asks for itself.
    """
    api = flask.Blueprint("switchyard", __name__, url_prefix=url_prefix)
    for call in before_request:
        api.before_request(call)
    api.add_url_rule(
        "/<path:path>",
        "pass",
        partial(_pass, upstream, settings),
        methods=METHODS,
        provide_automatic_options=False,
    )
    errors.register(api, errors.describe)
    request_id.register(api)
    return api


class PassedBody(Iterator[bytes]):
    """The rest of an answer. To close it cancels what the server has not generated."""

    def __init__(self, answer: Incoming) -> None:
        self._answer = answer

    def __next__(self) -> bytes:
        """Raises engine.Closed for a server that is lost, so that the client learns of it."""
        try:
            if data := self._answer.read():
                return data
        except ClientGone:
            pass
        except BaseException:
            self.close()
            raise
        self.close()
        raise StopIteration

    def close(self) -> None:
        self._answer.close()


def _pass(upstream: Upstream, settings: Settings, path: str) -> flask.Response:
    if ".." in path.split("/"):  # which would lead out of what the server's address says
        raise werkzeug.exceptions.NotFound
    request = flask.request
    client = WatchedClient(request.environ, serves_half_closed=False)
    client.limit_sends(settings.send_timeout)
    with client.receiving(settings.body_timeout):
        data = read_bytes(settings.max_body_bytes or MAX_BODY)
    query = f"?{request.query_string.decode('latin-1')}" if request.query_string else ""

    def look(silent: float) -> None:
        client.check()

    target = f"/{quote(path, safe='/:@!$&()*+,;=~')}{query}"
    answer = upstream.send(request.method, target, _headers(request), data, look)
    told = [(k, v) for k, v in answer.headers.items() if _is_passed(k) or k == "Content-Length"]
    return flask.Response(PassedBody(answer), answer.status, told, direct_passthrough=True)


def _headers(request: flask.Request) -> dict[str, str]:
    """Whose request it is the server must not take for the host's own: of this machine, maybe."""
    headers = {name: value for name, value in request.headers if _is_passed(name)}
    if headers.get("Origin", "").partition("://")[2] == request.host:
        del headers["Origin"]  # of a page of the host: the server goes by another name
    before = request.headers.getlist("X-Forwarded-For")
    headers["X-Forwarded-For"] = ", ".join([*before, request.remote_addr or "unknown"])
    headers["Via"] = VIA
    headers[request_id.HEADER] = request_id.request_id()
    return headers


def _is_passed(name: str) -> bool:
    return name.lower() not in OWN
