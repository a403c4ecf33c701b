"""Errors that a request can cause outside the engine.

    SwitchyardError ├── BadRequest a parameter, or the body, can't be understood or honored ├──
    Unauthorized the request has no valid API key ├── NotPermitted the role of its API key does not
    allow the route ├── LimitReached its API key is at a limit, or its address has sent too many
    wrong keys ├── BudgetSpent its API key has used up its budget ├── BodyTimeout its body took too
    long to arrive ├── TimedOut one of its deadlines has passed └── ClientGone its client has left;
    a ConnectionResetError

app/errors.py has their status codes.
"""

import errno
from typing import Any

from switchyard.errors import SwitchyardError


class BadRequest(SwitchyardError):
    """The request can't be understood or honored.

    `param`: the parameter that caused the error. `details`: a wire format's additions to the
    message.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        code: str = "invalid_value",
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.param = param
        self.code = code
        self.details = details


class ClientGone(SwitchyardError, ConnectionResetError):
    """The client has left. WSGI servers raise the base class, ConnectionResetError, when a write
    fails.
    """

    def __init__(self) -> None:
        super().__init__(errno.ECONNRESET, "the client has left")


class Unauthorized(SwitchyardError):
    """The API key is missing or not valid. The message is the same for all reasons, because
    different messages would reveal keys.
    """

    def __init__(self) -> None:
        super().__init__("the API key is missing or not valid")


class NotPermitted(SwitchyardError):
    """The role of the request's API key does not allow the route."""


class LimitReached(SwitchyardError):
    """The API key or the address has reached a limit. `retry_after`: seconds."""

    def __init__(self, message: str, retry_after: float, code: str = "rate_limit_exceeded") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.code = code


class BudgetSpent(SwitchyardError):
    """The budget of the request's API key is used up. Unlike with LimitReached, a short wait does
    not help.
    """


class BodyTimeout(SwitchyardError):
    """The request's body took too long to arrive."""


class TimedOut(SwitchyardError):
    """A deadline has passed. `code`: the name of the deadline's setting."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
        self.usage: dict[str, Any] = {}  # tokens used before the deadline
