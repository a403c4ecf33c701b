"""Every error as clients of OpenAI's API, or of Anthropic's, expect it. The only status codes of
errors.
"""

import logging
import math
import re
from typing import Any, Literal, NamedTuple, NotRequired

import flask
import werkzeug.exceptions
import werkzeug.routing
from typing_extensions import TypedDict  # which pydantic needs before Python 3.12

from switchyard import engine
from switchyard.app.exceptions import BadRequest, BodyTimeout, ClientGone, TimedOut
from switchyard.app.http.body import json_response
from switchyard.app.http.request_id import request_id

logger = logging.getLogger(__name__)


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None  # the parameter at fault
    code: str | None
    usage: NotRequired[dict[str, Any]]  # until a deadline


class ErrorBody(TypedDict):
    error: ErrorDetail


class AnthropicErrorDetail(TypedDict):
    type: str
    message: str


class AnthropicErrorBody(TypedDict):
    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


EitherErrorBody = ErrorBody | AnthropicErrorBody


class Kind(NamedTuple):
    status: int
    type: str
    code: str | None
    headers: dict[str, str] = {}  # noqa: RUF012  # a NamedTuple's default, never changed


# The client retries 429 and 5xx by itself. Not where the model has worked on the job already.
_NO_RETRY = {"x-should-retry": "false"}

KINDS: dict[type[engine.EngineError], Kind] = {
    engine.ModelNotFound: Kind(404, "invalid_request_error", "model_not_found"),
    engine.InvalidJob: Kind(400, "invalid_request_error", "invalid_value"),
    engine.PromptTooLong: Kind(400, "invalid_request_error", "context_length_exceeded"),
    engine.Full: Kind(429, "rate_limit_error", "queue_full"),
    engine.Loading: Kind(503, "server_error", "overloaded"),
    engine.Stalled: Kind(503, "server_error", "overloaded"),
    engine.Draining: Kind(503, "server_error", "overloaded"),
    engine.Dead: Kind(503, "server_error", "model_failed"),
    engine.ModelError: Kind(503, "server_error", "model_failed"),
    engine.JobFailed: Kind(500, "server_error", "job_failed", _NO_RETRY),
    engine.BatchFailed: Kind(500, "server_error", "batch_failed", _NO_RETRY),
    engine.Closed: Kind(503, "server_error", "shutting_down", _NO_RETRY),
}


_RANDOM = re.compile("[0-9a-f]{32}")  # of a response's identifier


def without_identifiers(message: str) -> str:
    """What has failed for all, told to all: a backend's exception may name one client's response,
    by which its stream could be read.
    """
    return _RANDOM.sub("…", message)


def describe(error: Exception) -> tuple[Kind, dict[str, Any]]:
    """What kind of error it is, and its body."""
    param: str | None = None
    message = str(error)
    more: dict[str, Any] = {}
    match error:
        case BadRequest():
            kind = Kind(400, "invalid_request_error", error.code)
            param = error.param
        case BodyTimeout():
            kind = Kind(408, "timeout_error", "body_timeout")
        case TimedOut():
            # After the others a retry would only do the same work again.
            headers = {} if error.code == "queue_timeout" else _NO_RETRY
            kind = Kind(408, "timeout_error", error.code, headers)
            more = {"usage": error.usage} if error.usage else {}
        case ClientGone():
            kind = Kind(499, "invalid_request_error", "client_gone")  # for the access log: nginx's
        case engine.EngineError():
            kind = next(KINDS[c] for c in type(error).__mro__ if c in KINDS)
            param = error.param
            if not isinstance(error, engine.Rejected):  # else it is the request's own alone
                message = without_identifiers(message)
            if isinstance(error, engine.Refused):
                kind = kind._replace(headers={"Retry-After": _whole_seconds(error.retry_after)})
        case werkzeug.routing.WebsocketMismatch():
            kind = Kind(400, "invalid_request_error", "invalid_handshake")
            message = "/v1/stream takes WebSocket handshakes alone, and nothing else takes them"
        case werkzeug.exceptions.HTTPException(code=int(status)):
            fault = "invalid_request_error" if status < 500 else "server_error"
            headers = {k: v for k, v in error.get_headers() if k in ("Allow", "Retry-After")}
            if status == 501:  # and will be, however often it is tried
                headers |= _NO_RETRY
            kind = Kind(status, fault, None, headers)
            message = error.description or error.name
        case _:
            logger.error("unexpected, request %s", request_id(), exc_info=error)
            kind = Kind(500, "server_error", "internal_error")
            message = "the server failed in an unexpected way; its log says how"
    body = {"message": message, "type": kind.type, "param": param, "code": kind.code, **more}
    return kind, {"error": body}


def _whole_seconds(seconds: float) -> str:
    """OpenAI's clients don't retry at all if told more than two minutes."""
    return str(math.ceil(min(max(seconds, 1), 120)))


# Anthropic's types, where the status doesn't say enough.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def expects_anthropic() -> bool:
    """Whether the client of the current request speaks Anthropic's API."""
    is_message = "/v1/messages/" in f"{flask.request.path}/"
    return is_message or "anthropic-version" in flask.request.headers


def describe_to_anthropic(error: Exception, request_id: str) -> tuple[Kind, dict[str, Any]]:
    """As `describe`."""
    kind, body = describe(error)
    if kind.code == "overloaded":
        kind = kind._replace(status=529)
    fault = _TYPES.get(kind.status, "invalid_request_error" if kind.status < 500 else "api_error")
    message, param = body["error"]["message"], body["error"]["param"]
    if param is not None and param not in message:  # nothing else would name it
        message = f"{param}: {message}"
    return kind, {
        "type": "error",
        "error": {"type": fault, "message": message},
        "request_id": request_id,
    }


def respond(error: Exception) -> flask.Response:
    if expects_anthropic():
        kind, body = describe_to_anthropic(error, request_id())
    else:
        kind, body = describe(error)
    return json_response(body, kind.status, kind.headers)


def register(target: flask.Flask | flask.Blueprint) -> None:
    """Have all errors of an application, or of one blueprint, answered this way."""
    target.register_error_handler(Exception, respond)
