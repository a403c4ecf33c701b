"""Error responses in the format of OpenAI's API. All status codes of errors are defined here."""

import functools
import logging
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, NotRequired

import flask
import werkzeug.exceptions
import werkzeug.routing
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.exceptions import (
    BadRequest,
    BodyTimeout,
    BudgetSpent,
    ClientGone,
    LimitReached,
    NotPermitted,
    TimedOut,
    Unauthorized,
)
from switchyard.app.http.body import json_response
from switchyard.app.http.request_id import request_id

logger = logging.getLogger(__name__)


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None  # the parameter that caused the error
    code: str | None
    usage: NotRequired[dict[str, Any]]  # tokens used before the deadline


class ErrorBody(TypedDict):
    error: ErrorDetail


class Kind(NamedTuple):
    status: int
    type: str
    code: str | None
    headers: dict[str, str] = {}  # noqa: RUF012  # a NamedTuple's default, never changed


class NotStored(werkzeug.exceptions.NotFound):
    """No response with that identifier is stored for the client. `param`: the parameter that names
    the response.
    """

    def __init__(self, message: str, param: str | None = None, kind: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.kind = kind  # the `code` in the body


Described = tuple[Kind, dict[str, Any]]
Describe = Callable[[Exception], Described]

CODE = "switchyard_error_code"  # name in flask.g, for a request that gets an error
INTERNAL = Kind(500, "server_error", "internal_error")

# OpenAI's clients retry 429 and 5xx automatically. This header prevents a retry that would repeat
# the model's work.
_NO_RETRY = {"x-should-retry": "false"}
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="switchyard"'}

KINDS: dict[type[engine.EngineError], Kind] = {
    engine.ModelNotFound: Kind(404, "invalid_request_error", "model_not_found"),
    engine.InvalidJob: Kind(400, "invalid_request_error", "invalid_value"),
    engine.ConstraintTooSlow: Kind(400, "invalid_request_error", "constraint_too_slow"),
    engine.PromptTooLong: Kind(400, "invalid_request_error", "context_length_exceeded"),
    engine.Full: Kind(429, "rate_limit_error", "queue_full"),
    engine.Loading: Kind(503, "server_error", "overloaded"),
    engine.Stalled: Kind(503, "server_error", "overloaded"),
    engine.Draining: Kind(503, "server_error", "overloaded"),
    engine.Unloaded: Kind(503, "server_error", "model_unloaded"),
    engine.NoRoom: Kind(409, "invalid_request_error", "no_memory", _NO_RETRY),
    engine.LoadUnderWay: Kind(409, "invalid_request_error", "load_under_way", _NO_RETRY),
    engine.NotOurs: Kind(501, "invalid_request_error", "shared_engine", _NO_RETRY),
    engine.Dead: Kind(503, "server_error", "model_failed"),
    engine.ModelError: Kind(503, "server_error", "model_failed"),
    engine.JobFailed: Kind(500, "server_error", "job_failed", _NO_RETRY),
    engine.BatchFailed: Kind(500, "server_error", "batch_failed", _NO_RETRY),
    engine.Closed: Kind(503, "server_error", "shutting_down", _NO_RETRY),
}

PLAIN_KINDS: dict[type[Exception], Kind] = {
    Unauthorized: Kind(401, "invalid_request_error", "invalid_api_key", _NO_RETRY | _CHALLENGE),
    NotPermitted: Kind(403, "permission_error", "insufficient_permissions", _NO_RETRY),
    BodyTimeout: Kind(408, "timeout_error", "body_timeout"),
    BudgetSpent: Kind(429, "insufficient_quota", "insufficient_quota", _NO_RETRY),
    ClientGone: Kind(499, "invalid_request_error", "client_gone"),  # nginx's status, for the log
}


_RANDOM = re.compile("[0-9a-f]{32}")  # the random part of a response's identifier


def without_identifiers(message: str) -> str:
    """The message without identifiers of responses, so that all clients may see it.

    A backend's exception may contain the identifier of one client's response, with which another
    client could read the stream.
    """
    return _RANDOM.sub("…", message)


def describe(error: Exception) -> Described:
    """The kind of an error, and the body of its response. Logs unexpected errors."""
    param: str | None = None
    message = str(error)
    more: dict[str, Any] = {}
    match error:
        case BadRequest():
            kind = Kind(400, "invalid_request_error", error.code)
            param = error.param
        case NotStored(param=param, kind=code):
            kind = Kind(404, "invalid_request_error", code)
            message = error.description or error.name
        case Unauthorized() | NotPermitted() | BudgetSpent() | BodyTimeout() | ClientGone():
            kind = PLAIN_KINDS[type(error)]
        case LimitReached():
            kind = Kind(429, "rate_limit_error", error.code, _wait(error.retry_after))
        case TimedOut():
            # After any other deadline, a retry would repeat the model's work.
            headers = {} if error.code == "queue_timeout" else _NO_RETRY
            kind = Kind(408, "timeout_error", error.code, headers)
            more = {"usage": error.usage} if error.usage else {}
        case engine.EngineError():
            kind = next(KINDS[c] for c in type(error).__mro__ if c in KINDS)
            param = error.param
            if not isinstance(error, engine.Rejected):  # a rejection concerns only this request
                message = without_identifiers(message)
            if isinstance(error, engine.PromptTooLong) and error.limit:
                message = _too_long(error)
            if isinstance(error, engine.Refused):
                kind = kind._replace(headers={"Retry-After": _whole_seconds(error.retry_after)})
        case werkzeug.routing.WebsocketMismatch():
            kind = Kind(400, "invalid_request_error", "invalid_handshake")
            message = (
                "/v1/stream accepts only WebSocket handshakes, and no other route accepts them"
            )
        case werkzeug.exceptions.HTTPException(code=int(status)):
            fault = "invalid_request_error" if status < 500 else "server_error"
            headers = {k: v for k, v in error.get_headers() if k in ("Allow", "Retry-After")}
            if status == 501:  # a retry would not help
                headers |= _NO_RETRY
            kind = Kind(status, fault, None, headers)
            message = error.description or error.name
        case _:
            logger.error("unexpected error, request %s", request_id(), exc_info=error)
            kind = INTERNAL
            message = "the server failed in an unexpected way; see its log"
    body = {"message": message, "type": kind.type, "param": param, "code": kind.code, **more}
    return kind, {"error": body}


def _too_long(error: engine.PromptTooLong) -> str:
    """The message, in words that OpenAI's clients recognize."""
    bound = "" if error.is_whole else "at least "
    asked = f"the prompt has {bound}{error.prompt_tokens} tokens"
    if error.new_tokens:
        asked = (
            f"you requested {error.prompt_tokens + error.new_tokens} tokens ({error.prompt_tokens}"
            f" in the prompt, {error.new_tokens} in the completion)"
        )
    return (
        f"This model's maximum context length is {error.limit} tokens. However, {asked}. Please"
        " reduce their number."
    )


_NUMBERS = re.compile(
    r"This model's maximum context length is (?P<limit>\d+) tokens\. However, (?:the prompt has"
    r" (?P<bound>at least )?(?P<all>\d+) tokens|you requested \d+ tokens \((?P<prompt>\d+) in the"
    r" prompt, (?P<new>\d+) in the completion\))"
)


def read_too_long(message: str, param: str | None) -> engine.PromptTooLong:
    """The error that a message reports. The error includes the numbers of tokens if the message has
    a format that `_too_long` or other servers use.
    """
    found = _NUMBERS.match(message)
    if found is None:
        return engine.PromptTooLong(message, param)
    prompt, new = int(found["all"] or found["prompt"]), int(found["new"] or 0)
    is_whole = found["bound"] is None
    return engine.PromptTooLong(message, param, prompt, new, int(found["limit"]), is_whole)


def _wait(seconds: float) -> dict[str, str]:
    """Headers that ask the client to retry after `seconds`. OpenAI's and Anthropic's clients prefer
    milliseconds.
    """
    return {
        "Retry-After": str(max(math.ceil(seconds), 1)),
        "retry-after-ms": str(max(math.ceil(seconds * 1000), 1)),
    }


def _whole_seconds(seconds: float) -> str:
    """The wait in whole seconds, at most two minutes, because OpenAI's clients don't retry at all
    if told to wait longer.
    """
    return str(math.ceil(min(max(seconds, 1), 120)))


def respond(describe: Describe, error: Exception) -> flask.Response:
    kind, body = describe(error)
    setattr(flask.g, CODE, kind.code)
    return json_response(body, kind.status, kind.headers)


def register(target: flask.Flask | flask.Blueprint, describe: Describe) -> None:
    """Makes an application or blueprint respond to each error with what `describe` returns."""
    handler = functools.partial(respond, describe)
    # An application's handler for a code takes precedence over a blueprint's handler for Exception.
    for code in werkzeug.exceptions.default_exceptions:
        target.register_error_handler(code, handler)
    target.register_error_handler(Exception, handler)
