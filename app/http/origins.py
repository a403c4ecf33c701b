"""Checks of the `Origin` and `Host` headers, and CORS headers of responses."""

import functools
import re
from collections.abc import Collection

import flask
import werkzeug.exceptions

from switchyard.app.http.client import is_unix

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
PORT = re.compile(r":\d*$", re.ASCII)
ANY = "*"
EXPOSED = (
    "Retry-After",
    "X-Request-Id",
    *(
        f"{prefix}{kind}"
        for kind in ("requests", "tokens")
        for prefix in ("x-ratelimit-limit-", "x-ratelimit-remaining-", "x-ratelimit-reset-")
    ),
    *(
        f"anthropic-ratelimit-{kind}-{what}"
        for kind in ("requests", "tokens")
        for what in ("limit", "remaining", "reset")
    ),
)


def register(target: flask.Flask | flask.Blueprint, allowed: Collection[str]) -> None:
    """Lets pages from `allowed` origins read responses of an application or blueprint (CORS)."""
    if allowed:
        target.after_request(functools.partial(_allow, allowed))


def check(allowed: Collection[str]) -> None:
    """Raises Forbidden if a page from another origin caused the current request (CSRF). Needed for
    routes that a browser requests without a CORS preflight.
    """
    headers = flask.request.headers
    origin = headers.get("Origin")
    # A proxy may have terminated TLS, so the scheme is not compared.
    is_foreign = origin is not None and origin.partition("://")[2] != flask.request.host
    # Browsers send no Origin for a page's images and links.
    is_foreign = is_foreign or (origin is None and headers.get("Sec-Fetch-Site") == "cross-site")
    if is_foreign and not _is_one_of(origin, allowed):
        raise werkzeug.exceptions.Forbidden(
            "pages from other origins are refused; see the cors_origins setting"
        )


def check_host(allowed: Collection[str]) -> None:
    """Raises Forbidden if the current request's `Host` is not in `allowed`. This prevents DNS
    rebinding by a page whose name resolves to this server's address. If `allowed` is empty, a
    server that listens on loopback allows only the loopback names, and any other server allows all
    names.
    """
    environ = flask.request.environ
    host = environ.get("HTTP_HOST")
    if host is None or is_unix(environ):  # the request doesn't come from a browser
        return
    name = PORT.sub("", host.lower())
    names = allowed or (LOOPBACK if _is_loopback(environ["SERVER_NAME"]) else (ANY,))
    if ANY not in names and name not in names:
        raise werkzeug.exceptions.Forbidden(
            f"Host: {name[:100]!r} is not in the server's allowed_hosts setting"
        )


def _is_loopback(name: str) -> bool:
    """Whether the server listens on a loopback address. Not every WSGI server reports this."""
    return name in ("localhost", "::1") or name.startswith("127.")


def _is_one_of(origin: str | None, allowed: Collection[str]) -> bool:
    return ANY in allowed or origin in allowed


def _allow(allowed: Collection[str], response: flask.Response) -> flask.Response:
    response.headers.add("Vary", "Origin")
    origin = flask.request.headers.get("Origin")
    if origin is None or not _is_one_of(origin, allowed):
        return response
    response.headers["Access-Control-Allow-Origin"] = origin
    response.headers["Access-Control-Expose-Headers"] = ", ".join(EXPOSED)
    if flask.request.method == "OPTIONS":
        response.headers["Access-Control-Allow-Methods"] = "GET, POST, PUT, DELETE"
        if asked := flask.request.headers.get("Access-Control-Request-Headers"):
            response.headers["Access-Control-Allow-Headers"] = asked
        response.headers["Access-Control-Max-Age"] = "600"
    return response
