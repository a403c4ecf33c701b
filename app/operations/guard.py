"""The guard of the routes, which checks API keys, roles and limits, and keeps accounts. Runs on
request threads.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeGuard

import flask

from switchyard import engine
from switchyard.app.config import Settings
from switchyard.app.errors import CODE, INTERNAL, describe
from switchyard.app.exceptions import (
    BadRequest,
    BudgetSpent,
    LimitReached,
    NotPermitted,
    TimedOut,
    Unauthorized,
)
from switchyard.app.http.identity import ADDRESS, CALLER, Caller, address_of, is_operator
from switchyard.app.http.network import network_of
from switchyard.app.http.proxies import Proxies
from switchyard.app.openapi.contract import COUNTS, GENERATES, WHO, Who
from switchyard.app.operations import access
from switchyard.app.operations.account import ACCOUNT, Account, Recorder, account_of
from switchyard.app.operations.credentials import given_key
from switchyard.app.operations.failures import Failures
from switchyard.app.operations.keyring import Keyring
from switchyard.app.operations.keys import ApiKey, KeyTable, Role
from switchyard.app.operations.limits import BudgetKeeper, Quota, Quotas

# The roles that may use a route, by its `who`. Only admins may use a route without `who`.
ROLES: dict[Who, tuple[Role, ...]] = {
    "any": ("user", "metrics", "admin"),
    "metrics": ("metrics", "admin"),
    "user": ("user", "admin"),
    "admin": ("admin",),
    "operator": ("admin",),
}


# Prefixes of the names of blueprints for probes.
QUIET = ("switchyard_health", "switchyard_metrics")


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of an application with API keys."""

    keyring: Keyring
    quotas: Quotas
    failures: Failures


def open_checks(settings: Settings, budgets: BudgetKeeper | None) -> Checks | None:
    """The checks according to the settings; None without a `keys_file`. Raises KeysError.

    `budgets`: None without a ledger.
    """
    if not settings.keys_file:
        return None
    quotas = Quotas(budgets=budgets)

    def forget(table: KeyTable) -> None:
        quotas.keep(table.by_name.keys())

    keyring = Keyring(settings.keys_file, settings.max_priority, bool(settings.ledger), forget)
    return Checks(keyring, quotas, Failures())


class Guard:
    """The guard of one application. The guard registers only the hooks that the settings
    require.
    """

    def __init__(
        self,
        settings: Settings,
        checks: Checks | None,
        recorders: Sequence[Recorder],
    ) -> None:
        self._checks = checks
        self._recorders = recorders
        self._proxies = Proxies(settings.trusted_proxies) if settings.trusted_proxies else None

    def register(
        self, target: flask.Flask | flask.Blueprint, routes: flask.Flask | flask.Blueprint
    ) -> None:
        """Registers the hooks that open an account for each request to `target`, if there are keys
        or recorders. If there are keys, requests to `routes` need a key.
        """
        if self._proxies is not None:
            target.before_request(self._note_address)
        if self._checks is not None or self._recorders:
            target.before_request(self._open)
            target.after_request(self._answer)
            target.teardown_request(self._leave)
        if self._checks is not None:
            routes.before_request(self._check)

    @contextlib.contextmanager
    def generation(self, environ: dict[str, Any]) -> Iterator[Account | None]:
        """An account for one of several generations on a connection, such as a WebSocket. The
        connection's key is checked again. An error raised within this context determines the
        account's status. Yields None if the application keeps no accounts. Raises Unauthorized,
        LimitReached.
        """
        of_connection = account_of(environ)
        if of_connection is None:
            yield None
            return
        account = environ[ACCOUNT] = of_connection.another()
        self._say(account, 200)
        account.is_generation = True
        try:
            if self._checks is not None and of_connection.key is not None:
                account.quota = self._quota_again(of_connection.key)
                account.enter()
            yield account
        except BaseException as error:
            if account.said:
                kind = describe(error)[0] if _is_told(error) else INTERNAL
                account.said |= {"status": kind.status, "code": kind.code}
            account.answered()
            raise
        finally:
            environ[ACCOUNT] = of_connection

    def of_host(self) -> Account | None:
        """An account for a generation of the host application itself. None without recorders."""
        if not self._recorders:
            return None
        account = Account(self._recorders)
        account.is_host = True
        return account

    def _quota_again(self, key: ApiKey) -> Quota:
        assert self._checks is not None
        entry = self._checks.keyring.find_again(key)
        if entry is None:
            raise Unauthorized
        return self._checks.quotas.of(entry)

    def _note_address(self) -> None:
        assert self._proxies is not None
        flask.request.environ[ADDRESS] = self._proxies.client_of(flask.request)

    def _open(self) -> None:
        flask.request.environ[ACCOUNT] = Account(self._recorders)

    def _check(self) -> None:
        """Checks key, role and limits of the current request.

        Raises Unauthorized, NotPermitted, LimitReached, or BadRequest for two keys.
        """
        request = _request()
        view = flask.current_app.view_functions.get(request.endpoint or "")
        who: Who = getattr(view, WHO, "admin")
        if who == "public" or request.method == "OPTIONS":  # browsers send OPTIONS without a key
            return
        key = given_key(request)
        if key is None and who == "operator" and is_operator(request):
            return
        entry = self._find(key, network_of(address_of(request)))
        request.environ[CALLER] = Caller(entry.name, entry.role)
        if entry.role not in ROLES[who]:
            raise NotPermitted(
                f"the API key {entry.name} has the role {entry.role}, which doesn't allow this"
            )
        account = account_of(request.environ)
        assert account is not None and self._checks is not None
        account.quota = self._checks.quotas.of(entry)
        if getattr(view, COUNTS, False):
            account.enter()

    def _find(self, key: bytes | None, network: str) -> ApiKey:
        assert self._checks is not None
        if key is None:
            raise Unauthorized
        entry = self._checks.keyring.find(key)
        if entry is None:  # a valid key passes, even if others in its network send wrong keys
            self._checks.failures.check(network)
            self._checks.failures.note(network)
            raise Unauthorized
        return entry

    def _answer(self, response: flask.Response) -> flask.Response:
        request = _request()
        account = account_of(request.environ)
        if account is not None:
            if account.quota is not None:
                for name, value in _told(account.quota, request):
                    response.headers.add(name, value)
            self._say(account, _status(request, response))
            if not _is_websocket(request):  # the response of a WebSocket is never closed
                account.has_response = True
                account.sent(_length(request, response))
                if hasattr(response, "on_sent"):
                    response.on_sent = account.sent
                response.direct_passthrough = (
                    False  # otherwise werkzeug doesn't notice the end of a file
                )
                response.call_on_close(account.answered)
        return response

    def _leave(self, error: BaseException | None) -> None:
        """Ends the account of a request that has no response to close."""
        account = account_of(flask.request.environ)
        if account is not None and not account.has_response:
            if error is not None and not account.said:
                self._say(account, 500)
            account.answered()

    def _say(self, account: Account, status: int) -> None:
        if self._recorders:
            request = _request()
            account.said = access.said(request, status)
            account.said["code"] = flask.g.get(CODE)
            endpoint = request.endpoint or ""
            account.is_quiet = any(name in endpoint for name in QUIET)
            view = flask.current_app.view_functions.get(endpoint)
            account.is_generation = getattr(view, GENERATES, False)


def _request() -> flask.Request:
    """The current request object itself. Flask's proxy costs a microsecond per access."""
    request: flask.Request = flask.request._get_current_object()  # type: ignore[attr-defined]
    return request


def _is_told(error: BaseException) -> TypeGuard[Exception]:
    """Whether an error's message is meant for clients. Any other error is caused by a bug."""
    kinds = (BadRequest, BudgetSpent, LimitReached, TimedOut, Unauthorized, engine.EngineError)
    return isinstance(error, kinds)


def _is_websocket(request: flask.Request) -> bool:
    return request.url_rule is not None and request.url_rule.websocket


def _status(request: flask.Request, response: flask.Response) -> int:
    """The status for logs. A WebSocket has already sent its own status, so its response is never
    written.
    """
    is_websocket = _is_websocket(request) and response.status_code < 400
    return 101 if is_websocket else response.status_code


def _length(request: flask.Request, response: flask.Response) -> int:
    """The number of bytes in a body that isn't streamed."""
    if request.method == "HEAD":
        return 0
    if response.is_sequence:
        return sum(map(len, response.iter_encoded()))
    return response.content_length or 0


def _told(quota: Quota, request: flask.Request) -> Iterator[tuple[str, str]]:
    """Rate-limit headers for a key, under OpenAI's names, and for Anthropic's clients also under
    Anthropic's names.
    """
    is_anthropic = "anthropic-version" in request.headers or "/v1/messages" in request.path
    for name, level in quota.levels():
        yield f"x-ratelimit-limit-{name}", str(level.limit)
        yield f"x-ratelimit-remaining-{name}", str(level.remaining)
        yield f"x-ratelimit-reset-{name}", duration(level.reset)
        if is_anthropic:
            when = datetime.now(UTC) + timedelta(seconds=level.reset)
            yield f"anthropic-ratelimit-{name}-limit", str(level.limit)
            yield f"anthropic-ratelimit-{name}-remaining", str(level.remaining)
            yield f"anthropic-ratelimit-{name}-reset", when.strftime("%Y-%m-%dT%H:%M:%SZ")


def duration(seconds: float) -> str:
    """A duration in the format of OpenAI's headers: 12ms, 6.5s, 1m3s. Rounded up."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{math.ceil(seconds * 10) / 10:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"
