"""The identity of a request: the client to which it is attributed, the owner of its answer, and
whether an operator sent it. `operations` checks API keys and stores the result in the environ as
`CALLER`.
"""

import hashlib
from typing import NamedTuple

import flask

from switchyard.app.http.client import is_unix
from switchyard.app.http.network import network_of

LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
FOREIGN = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via", "Origin")

# Keys in the environ of a request
CALLER = "switchyard.caller"  # the name and role of a checked key
ADDRESS = "switchyard.address"  # the address of the client, behind trusted proxies

HOST = "key:host"  # the client of the host application's own jobs, if the server has keys


class Caller(NamedTuple):
    """The name and role of a request's API key, after the check."""

    name: str
    role: str

    @property
    def is_admin(self) -> bool:
        return self.role == "admin"


def caller_of(request: flask.Request) -> Caller | None:
    caller: Caller | None = request.environ.get(CALLER)
    return caller


def address_of(request: flask.Request) -> str:
    return request.environ.get(ADDRESS) or request.remote_addr or ""


def share_of(request: flask.Request) -> str:
    """The client to which shares and limits apply: the checked API key, or else the network of the
    address.

    An unchecked key does not count, because a client could invent keys to gain shares.
    """
    if (caller := caller_of(request)) is not None:
        return f"key:{caller.name}"
    return f"address:{network_of(address_of(request))}"


def author_of(request: flask.Request) -> str:
    """The client that the audit log names: the checked API key, or else the whole address."""
    caller = caller_of(request)
    return f"address:{address_of(request)}" if caller is None else f"key:{caller.name}"


def owner_of(request: flask.Request) -> str:
    """The owner of a request's answer: the checked API key, or else the unchecked key together with
    the address.

    Clients that use the same proxy may share key and address. A caller that grants access by owner
    must also require something that only one client knows.
    """
    if caller_of(request) is not None:
        return key_of(request)
    return f"{key_of(request)}@{address_of(request)}"


def key_of(request: flask.Request) -> str:
    """The API key of a request: the name of a checked key, otherwise a hash; empty without a key.

    An unchecked key is hashed, because a key must not get into a log.
    """
    if (caller := caller_of(request)) is not None:
        return f"key:{caller.name}"
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    key = request.headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
    return f"key-{hashlib.sha256(key.encode()).hexdigest()[:16]}" if key else ""


def is_operator(request: flask.Request) -> bool:
    """Whether a request has an operator's rights.

    With API keys, the key's role must be admin. Without API keys, the request must come from a
    process on the server's own machine; headers of a proxy, or a browser's `Origin`, show that the
    request did not.
    """
    if (caller := caller_of(request)) is not None:
        return caller.is_admin
    is_local = is_unix(request.environ) or request.remote_addr in LOCAL
    return is_local and not any(name in request.headers for name in FOREIGN)
