"""Who a request is from: whose share it takes, whose its answer is, and whether an operator sends
it. Keys are not checked.
"""

import hashlib

import flask

from switchyard.app.http.client import is_unix

LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
FOREIGN = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via", "Origin")


def share_of(request: flask.Request) -> str:
    """Whose share a request takes: its address's. Keys can be made up, and would be new shares."""
    return f"address-{request.remote_addr}"


def owner_of(request: flask.Request) -> str:
    """Whose a request's answer is: those of the same API key, or none, and the same address. The
    clients of one proxy may have both in common: ask for what only one of them knows as well.
    """
    return f"{key_of(request)}@{request.remote_addr}"


def key_of(request: flask.Request) -> str:
    """The API key of a request, hashed since keys belong in no log; empty without one."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    key = request.headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
    return f"key-{hashlib.sha256(key.encode()).hexdigest()[:16]}" if key else ""


def is_operator(request: flask.Request) -> bool:
    """Whether it is from a process of the server's own machine: neither passed on by a proxy, nor
    what a web page has a browser of this machine do.
    """
    is_local = is_unix(request.environ) or request.remote_addr in LOCAL
    return is_local and not any(name in request.headers for name in FOREIGN)
