"""What a Switchyard server answers in place of text, as the exceptions of `Switchyard.generate`."""

import json
from collections.abc import Callable
from typing import Any

from switchyard import engine
from switchyard.app.delivery.reader import MEANINGS
from switchyard.app.exceptions import (
    BadRequest,
    BudgetSpent,
    LimitReached,
    NotPermitted,
    TimedOut,
    Unauthorized,
)
from switchyard.app.host.upstream import RETRY, Incoming

PASSING = (engine.Full, LimitReached)  # and `Refused` itself: what may be gone after a while

# By the code of an error's body. `app/errors.py` has them the other way round.
_ERRORS: dict[str, type[engine.EngineError]] = {
    "model_not_found": engine.ModelNotFound,
    "context_length_exceeded": engine.PromptTooLong,
    "no_memory": engine.NoRoom,
    "load_under_way": engine.LoadUnderWay,
    "shared_engine": engine.NotOurs,
    "job_failed": engine.JobFailed,
    "batch_failed": engine.BatchFailed,
    "shutting_down": engine.Closed,
}
_REFUSALS: dict[str, type[engine.Refused]] = {
    "queue_full": engine.Full,
    "overloaded": engine.Refused,  # which of them, no code says
    "model_unloaded": engine.Unloaded,
    "model_failed": engine.Dead,
}


def pause_of(error: Exception) -> float | None:
    """Seconds after which another try is worth it; None where waiting changes nothing."""
    if isinstance(error, PASSING) or type(error) is engine.Refused:
        return error.retry_after
    return None


def refusal_of(answer: Incoming, url: str) -> Exception:
    """Of an answer that is none of 200, which is read and closed. Raises what reading does."""
    try:
        body = json.loads(answer.read_all())
    except ValueError:
        body = None
    retry_after = _seconds(answer.headers.get("Retry-After", ""))
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        return error_of(body["error"], answer.status, retry_after)
    if answer.status in (502, 503, 504):  # a proxy's, before a server that is not there
        return engine.Dead(f"{url} has answered {answer.status}", retry_after)
    return engine.Failure(f"{url} has answered {answer.status}, and not as Switchyard does")


def error_of(detail: dict[str, Any], status: int = 500, retry_after: float = RETRY) -> Exception:
    """`detail`: the `error` of a body. `status`: of an answer, else that of what fails later."""
    code, message = str(detail.get("code")), str(detail.get("message"))
    param = detail.get("param")
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
