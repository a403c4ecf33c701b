"""What a request is called, in its answer and in the logs. Request threads."""

import re
import uuid

import flask

HEADER = "X-Request-Id"
KEY = "switchyard.request_id"  # in the environ of the request

_SANE = re.compile(r"[\w.:/+=@~-]{1,128}", re.ASCII)  # of UUIDs, traces, hashes; safe in a log line


def request_id() -> str:
    """Of the current request: what its client calls it, if that is sane, else one of our own; ""
    outside of a request. Clients repeat theirs, so nothing is found by it.
    """
    if not flask.has_request_context():
        return ""
    environ = flask.request.environ
    if KEY not in environ:
        given = flask.request.headers.get(HEADER, "")
        environ[KEY] = given if _SANE.fullmatch(given) else f"req_{uuid.uuid4().hex}"
    return str(environ[KEY])


def register(target: flask.Flask | flask.Blueprint) -> None:
    """Have all answers of an application, or of one blueprint, say it."""
    target.after_request(_say)


def _say(response: flask.Response) -> flask.Response:
    response.headers[HEADER] = request_id()
    if "anthropic-version" in flask.request.headers:
        response.headers["request-id"] = request_id()  # where Anthropic's clients look
    return response
