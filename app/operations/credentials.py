"""Reads the API key of a request from the headers that the clients of different APIs use."""

import base64
import binascii
from collections.abc import Iterator

import flask

from switchyard.app.exceptions import BadRequest

HEADERS = (
    "x-api-key",  # Anthropic's clients
    "api-key",  # Azure's clients
    "x-admin-key",  # TabbyAPI's clients
    "x-goog-api-key",  # Google's clients
)
# The headers' names in WSGI's environ.
VARIABLES = tuple(f"HTTP_{name.upper().replace('-', '_')}" for name in HEADERS)
SUBPROTOCOL = "openai-insecure-api-key."  # for browsers, which can't set the headers of a WebSocket


def given_key(request: flask.Request) -> bytes | None:
    """The API key of a request, or None. Raises BadRequest for two different keys.

    A key in the query string doesn't count, because proxies would log it.
    """
    found = list(_keys(request))
    if any(key != found[0] for key in found):
        raise BadRequest("the request has two different API keys", None, "invalid_api_key")
    return found[0] if found else None


def _keys(request: flask.Request) -> Iterator[bytes]:
    environ = request.environ
    scheme, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    token = token.strip()
    if scheme.lower() == "bearer" and token:
        yield _bytes(token)
    for name in VARIABLES:
        if value := environ.get(name, "").strip():
            yield _bytes(value)
    if scheme.lower() == "basic" and (password := _password(token)):
        yield password
    for protocol in environ.get("HTTP_SEC_WEBSOCKET_PROTOCOL", "").split(","):
        if protocol.strip().startswith(SUBPROTOCOL):
            yield _bytes(protocol.strip().removeprefix(SUBPROTOCOL))


def _bytes(value: str) -> bytes:
    """The original bytes of a header, which WSGI decodes as Latin-1."""
    return value.encode("latin-1", "replace")


def _password(token: str) -> bytes:
    """The password from HTTP Basic authentication, whatever the user name. Empty if there is
    none.
    """
    try:
        return base64.b64decode(token, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
