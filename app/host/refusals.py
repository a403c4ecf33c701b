"""Converts error responses of a Switchyard server to the exceptions that `Switchyard.generate`
raises.
"""

import json
from collections.abc import Callable
from typing import Any

from switchyard import engine
from switchyard.app.delivery.reader import MEANINGS
from switchyard.app.errors import read_too_long
from switchyard.app.exceptions import (
    BadRequest,
    BudgetSpent,
    ClientGone,
    LimitReached,
    NotPermitted,
    TimedOut,
    Unauthorized,
)
from switchyard.app.host.upstream import RETRY, Incoming

# Errors that may disappear with time, as `Refused` itself may.
PASSING = (engine.Full, LimitReached)

# Exceptions by the code in an error's body: the inverse of `app/errors.py`.
_ERRORS: dict[str, type[engine.EngineError]] = {
    "model_not_found": engine.ModelNotFound,
    "constraint_too_slow": engine.ConstraintTooSlow,
    "no_memory": engine.NoRoom,
    "load_under_way": engine.LoadUnderWay,
    "shared_engine": engine.NotOurs,
    "job_failed": engine.JobFailed,
    "batch_failed": engine.BatchFailed,
    "shutting_down": engine.Closed,
}
_REFUSALS: dict[str, type[engine.Refused]] = {
    "queue_full": engine.Full,
    "overloaded": engine.Refused,  # several subclasses have this code
    "model_unloaded": engine.Unloaded,
    "model_failed": engine.Dead,
}


def pause_of(error: Exception) -> float | None:
    """Seconds to wait before another attempt; None if waiting does not help."""
    if isinstance(error, PASSING) or type(error) is engine.Refused:
        return error.retry_after
    return None


def refusal_of(answer: Incoming) -> Exception:
    """The exception for a response whose status isn't 200. Reads and closes the response."""
    try:
        body = json.loads(answer.read_all())
    except ValueError:
        body = None
    retry_after = _seconds(answer.headers.get("Retry-After", ""))
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return error_of(body["error"], answer.status, retry_after)
    if answer.status in (502, 503, 504):  # sent by a proxy that can't reach the server
        return engine.Dead(f"the models' server returned status {answer.status}", retry_after)
    message = f"the models' server is not Switchyard: it returned status {answer.status}"
    return engine.Failure(message)


def error_of(detail: dict[str, Any], status: int = 500, retry_after: float = RETRY) -> Exception:
    """The exception for an error body. `detail`: the body's `error` member. `status`: the
    response's status; 500 inside a stream.
    """
    code, message = str(detail.get("code")), str(detail.get("message"))
    param = detail.get("param")
    if code == "context_length_exceeded":
        return read_too_long(message, param)
    if code in _ERRORS:
        return _ERRORS[code](message, param)
    if code in _REFUSALS:
        return _REFUSALS[code](message, retry_after)
    if code in MEANINGS:
        timed_out = TimedOut(message, code)
        timed_out.usage = detail.get("usage", {})
        return timed_out
    by_status: dict[int, Callable[[], Exception]] = {
        401: Unauthorized,
        403: lambda: NotPermitted(message),
        408: lambda: TimedOut(message, code),
        429: lambda: LimitReached(message, retry_after, code),
        499: ClientGone,
    }
    if code == "insufficient_quota":
        return BudgetSpent(message)
    if status in by_status:
        return by_status[status]()
    if status < 500:
        return BadRequest(message, param, code)
    return engine.Failure(message)


def _seconds(value: str) -> float:
    return float(value) if value.replace(".", "", 1).isdecimal() else RETRY
