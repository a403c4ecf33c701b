"""What goes wrong with a request before, beside and behind the engine.

    Exception
    ├── BadRequest       what it asks for can't be understood or honoured
    ├── Unauthorized     it has no API key that is valid
    ├── NotPermitted     its API key's role may not ask for this
    ├── LimitReached     a limit of its API key, or too many wrong ones from its address
    ├── BudgetSpent      its API key has used what it may
    ├── BodyTimeout      its body took too long to arrive
    ├── TimedOut         one of its deadlines has passed
    └── ClientGone       its client has left; a ConnectionResetError

app/errors.py has their status codes.
"""

import errno
from typing import Any


class BadRequest(Exception):
    """The request can't be understood or honoured; `param` is the parameter at fault, `details`
    what a wire format tells beside the message.
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


class ClientGone(ConnectionResetError):
    """Nobody waits for the answer any more. As a server's own finding when a write fails."""

    def __init__(self) -> None:
        super().__init__(errno.ECONNRESET, "the client has left")


class Unauthorized(Exception):
    """No API key that is valid: one text for all reasons, which would tell of keys that exist."""

    def __init__(self) -> None:
        super().__init__("the API key is missing or not valid")


class NotPermitted(Exception):
    """The role of the request's API key may not ask for this."""


class LimitReached(Exception):
    """Not now, by what the API key may use. `retry_after` in seconds."""

    def __init__(self, message: str, retry_after: float, code: str = "rate_limit_exceeded") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.code = code


class BudgetSpent(Exception):
    """The budget of the request's API key is used up, and waiting a while changes nothing."""


class BodyTimeout(Exception):
    """The request's body took too long to arrive."""


class TimedOut(Exception):
    """A deadline has passed. `code` says which."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code
        self.usage: dict[str, Any] = {}  # until then
