"""The request id, in responses and logs. Runs on request threads."""

import re
import uuid

import flask

HEADER = "X-Request-Id"
KEY = "switchyard.request_id"  # key in the environ of the request

# Such as UUIDs, traces and hashes; safe in a log line.
_SANE = re.compile(r"[\w.:/+=@~-]{1,128}", re.ASCII)


def request_id() -> str:
    """The id of the current request: the client's `X-Request-Id` if it is valid, otherwise a new
    one.

    Empty outside a request. Clients may reuse ids, so no table uses a request id as its key.
    """
    if not flask.has_request_context():
        return ""
    environ = flask.request.environ
    if KEY not in environ:
        given = flask.request.headers.get(HEADER, "")
        environ[KEY] = given if _SANE.fullmatch(given) else f"req_{uuid.uuid4().hex}"
    return str(environ[KEY])


def register(target: flask.Flask | flask.Blueprint) -> None:
    """Adds the `X-Request-Id` header to all responses of an application or blueprint."""
    target.after_request(_say)


def _say(response: flask.Response) -> flask.Response:
    response.headers[HEADER] = request_id()
    if "anthropic-version" in flask.request.headers:
        response.headers["request-id"] = request_id()  # Anthropic's clients read this header
    return response
