"""Who a request is from: whose share it takes, and whether an operator sends it. Keys are not
checked.
"""

import hashlib

import flask

from switchyard.app.http.client import is_unix

LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
FOREIGN = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via", "Origin")


def share_of(request: flask.Request) -> str:
    """Whose share a request takes: its API key's, hashed since keys belong in no log, else its
    address's.
    """
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    key = request.headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
    if key:
        return f"key-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    return f"address-{request.remote_addr}"


def is_operator(request: flask.Request) -> bool:
    """Whether it is from a process of the server's own machine: neither passed on by a proxy, nor
    what a web page has a browser of this machine do.
    """
    is_local = is_unix(request.environ) or request.remote_addr in LOCAL
    return is_local and not any(name in request.headers for name in FOREIGN)
