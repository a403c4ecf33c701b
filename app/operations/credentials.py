"""Where a request may have its API key: a header of whichever API its client speaks."""

import base64
import binascii
from collections.abc import Iterator

import flask

from switchyard.app.exceptions import BadRequest

HEADERS = (
    "x-api-key",  # Anthropic's
    "api-key",  # Azure's
    "x-admin-key",  # TabbyAPI's
    "x-goog-api-key",  # Google's
)
VARIABLES = tuple(f"HTTP_{name.upper().replace('-', '_')}" for name in HEADERS)  # of WSGI
SUBPROTOCOL = "openai-insecure-api-key."  # of a browser's WebSocket, which can't set headers


def given_key(request: flask.Request) -> bytes | None:
    """Not one in a query string, which logs keep. Raises BadRequest for two that differ."""
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
    """As they came: WSGI has them in Latin-1."""
    return value.encode("latin-1", "replace")


def _password(token: str) -> bytes:
    """Of HTTP's Basic authentication, with any name of a user. Empty if there is none."""
    try:
        return base64.b64decode(token, validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
