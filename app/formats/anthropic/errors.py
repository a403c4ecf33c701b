"""Errors in the format of Anthropic's API."""

from typing import Any, Literal, NotRequired

import flask
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app import errors
from switchyard.app.errors import Described
from switchyard.app.exceptions import BadRequest
from switchyard.app.http import request_id

BLUEPRINT = "switchyard_anthropic"  # the blueprint of the format's views


class AnthropicErrorDetail(TypedDict):
    type: str
    message: str
    details: NotRequired[dict[str, Any]]


class AnthropicErrorBody(TypedDict):
    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


# Types of errors by status. For other statuses, the class of the status decides.
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def is_spoken() -> bool:
    """Whether the client of the current request uses Anthropic's API."""
    is_message = "/v1/messages/" in f"{flask.request.path}/"
    # Views of this format, at any path.
    is_view = BLUEPRINT in (flask.request.blueprint or "").split(".")
    return is_message or is_view or "anthropic-version" in flask.request.headers


def describe(error: Exception, request_id: str) -> Described:
    """The kind of an error, and the body of its response."""
    kind, body = errors.describe(error)
    if kind.code == "overloaded":
        kind = kind._replace(status=529)
    fault = _TYPES.get(kind.status, "invalid_request_error" if kind.status < 500 else "api_error")
    message, param = body["error"]["message"], body["error"]["param"]
    if isinstance(error, engine.PromptTooLong) and error.limit:
        message, param = _too_long(error), None
    if param is not None and param not in message:  # the body has no other field for it
        message = f"{param}: {message}"
    return kind, {
        "type": "error",
        "error": {"type": fault, "message": message, **_details(error)},
        "request_id": request_id,
    }


def _too_long(error: engine.PromptTooLong) -> str:
    """The message, in words that Anthropic's clients recognize. The clients parse the numbers, so
    "at least" must not precede a number.
    """
    prompt, new, limit = error.prompt_tokens, error.new_tokens, error.limit
    if prompt >= limit:
        return f"prompt is too long: {prompt} tokens > {limit} maximum"
    return (
        f"input length and `max_tokens` exceed context limit: {prompt} + {new} > {limit}, decrease"
        " input length or `max_tokens` and try again"
    )


def _details(error: Exception) -> dict[str, Any]:
    details = error.details if isinstance(error, BadRequest) else None
    return {} if details is None else {"details": details}


def describe_to_current(error: Exception) -> Described:
    """Like `describe`, with the current request's id."""
    return describe(error, request_id.request_id())
