"""Who a request is from: whose share it takes, whose its answer is, and whether an operator sends
it. Keys are checked elsewhere, where the server has a file of them; `CALLER` is what that found.
"""

import hashlib
from typing import NamedTuple

import flask

from switchyard.app.http.client import is_unix

LOCAL = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
FOREIGN = ("Forwarded", "X-Forwarded-For", "X-Real-IP", "Via", "Origin")

# In the environ of a request
CALLER = "switchyard.caller"  # whose key was checked
ADDRESS = "switchyard.address"  # of the client, behind trusted proxies

HOST = "key:host"  # what the host application asks for by itself, where there are keys


class Caller(NamedTuple):
    """The API key of a request, once it is known to be valid."""

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
    """Whose share a request takes: its key's, if that is checked, else its address's. Other keys
    can be made up, and would be new shares.
    """
    caller = caller_of(request)
    return f"address:{address_of(request)}" if caller is None else f"key:{caller.name}"


def owner_of(request: flask.Request) -> str:
    """Whose a request's answer is: its key's, if that is checked. Else those of the same API key,
    or none, and the same address. The clients of one proxy may have both in common: ask for what
    only one of them knows as well.
    """
    if caller_of(request) is not None:
        return key_of(request)
    return f"{key_of(request)}@{address_of(request)}"


def key_of(request: flask.Request) -> str:
    """The API key of a request: its name, if it is checked, else its hash, since keys belong in no
    log; empty without one.
    """
    if (caller := caller_of(request)) is not None:
        return f"key:{caller.name}"
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    key = request.headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
    return f"key-{hashlib.sha256(key.encode()).hexdigest()[:16]}" if key else ""


def is_operator(request: flask.Request) -> bool:
    """Whether its key is an admin's; without keys, whether it is from a process of the server's own
    machine: neither passed on by a proxy, nor what a web page has a browser of this machine do.
    """
    if (caller := caller_of(request)) is not None:
        return caller.is_admin
    is_local = is_unix(request.environ) or request.remote_addr in LOCAL
    return is_local and not any(name in request.headers for name in FOREIGN)
