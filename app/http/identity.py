"""Who a request is from, as far as fair shares go. Nothing here checks that it is true."""

import hashlib

import flask


def share_of(request: flask.Request) -> str:
    """Whose share a request takes: its API key's, hashed since keys belong in no log, else its
    address's.
    """
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    key = request.headers.get("x-api-key") or (token.strip() if scheme.lower() == "bearer" else "")
    if key:
        return f"key-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    return f"address-{request.remote_addr}"
