"""Servers with a file of keys, over the scripted backend."""

import hashlib
import json

import pytest

from switchyard.app.operations.keyring import LOOK
from tests.app.conftest import ask, client, gate, handed_over, held, make_client, way
from tests.live.conftest import start
from tests.operations.ledgers import (
    Clock,
    fill,
    follow,
    ledger,
    make_counted,
    make_open,
    path,
    wall,
    zone,
)

__all__ = ["ask", "fill", "follow", "gate", "handed_over", "held", "ledger", "make_client", "start"]
__all__ += ["client", "make_counted", "make_open", "path", "wall", "way", "zone"]

KEYS = {name: f"sk-sy-{name}-0123456789abcdef" for name in ("ann", "bob", "root", "prom")}
ROLES = {"root": "admin", "prom": "metrics"}


def bearer(name):
    return {"Authorization": f"Bearer {KEYS.get(name, name)}"}


def entry(name, **more):
    """As TOML."""
    hashed = f"sha256:{hashlib.sha256(KEYS.get(name, name).encode()).hexdigest()}"
    values = {"name": name, "hash": hashed, "role": ROLES.get(name, "user"), **more}
    lines = (
        f"{key} = {value if key == 'expires' else json.dumps(value)}"
        for key, value in values.items()
    )
    return "\n".join(["[[keys]]", *lines, "", ""])


class KeysFile:
    def __init__(self, path):
        self.path = path

    def write(self, *entries, mode=0o600):
        self.path.write_text("".join(entries))
        self.path.chmod(mode)
        return self


@pytest.fixture
def keys_file(tmp_path):
    """A file with the keys of two users, ann and bob, an admin root, and prom, for metrics."""
    return KeysFile(tmp_path / "keys.toml").write(*map(entry, KEYS))


@pytest.fixture
def clock():
    """The clock of limits, failures and checks of the file, for `make_keyed`'s client."""
    return Clock()


@pytest.fixture
def make_keyed(make_client, keys_file, clock):
    """As `make_client`, with the file of keys and `clock`."""

    def make(backend, **settings):
        client = make_client(backend, **{"keys_file": str(keys_file.path), **settings})
        checks = client.application.extensions["switchyard"].checks
        for part in (checks.keyring, checks.quotas, checks.failures):
            part._clock = clock
        checks.keyring._next_look = clock() + LOOK
        return client

    return make
