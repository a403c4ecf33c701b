"""Attacks of `siege.py` by keys, addresses, files and model directories.

Each has `prepare`, which writes its files into the server's directory and returns settings for it.
"""

import contextlib
import hashlib
import http.client
import itertools
import json
import os
import pathlib
import time

from tests.hostile import KINDS, spoiled

DEMO = pathlib.Path(__file__).resolve().parent.parent / "models" / "demo"
GOOD, ADMIN = "the-key-of-the-good-client", "the-key-of-the-operator"
SPENDER, OTHER = "the-key-with-a-budget", "the-key-of-an-attacker"
HUGE = 100_000  # keys
KEYS, MODELS, LEDGER = "keys.toml", "models", "usage.db"


def entry(name, key, **more):
    digest = hashlib.sha256(key.encode()).hexdigest()
    more = {"name": name, "hash": f"sha256:{digest}", "role": "user", **more}
    lines = [f"{name} = {json.dumps(value)}" for name, value in more.items()]
    return "\n".join(["[[keys]]", *lines, ""])


def write_keys(path, *more):
    """As an editor does: whole, and then in the place of the old one."""
    beside = path.with_suffix(".new")
    beside.touch(0o600)
    own = [
        *(entry("good", GOOD), entry("attacker", OTHER), entry("op", ADMIN, role="admin")),
        entry("spender", SPENDER, budget_tokens=500, budget_period="day", tpm=60_000),
    ]
    beside.write_text("\n".join([*own, *more]))
    beside.replace(path)


def authorized(key):
    return {"Authorization": f"Bearer {key}"}


class Keyed:
    """The good client has a key."""

    good = authorized(GOOD)

    def prepare(self, directory):
        write_keys(pathlib.Path(directory, KEYS))
        return {"keys_file": f"{directory}/{KEYS}", "ledger": f"{directory}/{LEDGER}"}


class KeysFile(Keyed):
    """The file of keys becomes another thing, and itself again, in turns of a second."""

    def __init__(self, *spoils):
        self.spoils = spoils

    def run(self, port, deadline, directory):
        path = pathlib.Path(directory, KEYS)
        turns = [turn for spoil in self.spoils for turn in (spoil, write_keys)]
        for change in itertools.cycle(turns):
            if time.monotonic() > deadline:
                return write_keys(path)
            change(path)
            time.sleep(1.0)


def become_pipe(path):
    beside = path.with_suffix(".pipe")
    os.mkfifo(beside, 0o600)
    beside.replace(path)


def become_huge(path):
    write_keys(path, *(entry(f"k{i}", f"the-key-{i}") for i in range(HUGE)))


def become_half(path):
    """Written in its place, slowly."""
    with path.open("w") as file:
        for _ in range(5):
            file.write(entry("half", "a-key")[:-20])
            file.flush()
            time.sleep(0.2)


class Loads(Keyed):
    """An operator loads directories of strangers, one after the other."""

    def prepare(self, directory):
        for spoil in KINDS:
            spoiled(spoil, str(DEMO), pathlib.Path(directory, MODELS))
        return {**super().prepare(directory), "models_dir": f"{directory}/{MODELS}"}

    def run(self, port, deadline, directory):
        for name in itertools.cycle(sorted(os.listdir(f"{directory}/{MODELS}"))):
            if time.monotonic() > deadline:
                return
            command(port, deadline, "POST", f"/admin/models/{name}")


class Removal(Keyed):
    """The ledger's file is removed, and its sums are asked for."""

    def run(self, port, deadline, directory):
        while time.monotonic() < deadline:
            for file in pathlib.Path(directory).glob(f"{LEDGER}*"):
                file.unlink(missing_ok=True)
            command(port, deadline, "GET", "/v1/usage")
            time.sleep(1.0)


def command(port, deadline, method, path):
    """An operator's."""
    left = max(deadline - time.monotonic(), 0.1)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=left)
    headers = {"Content-Type": "application/json", **authorized(ADMIN)}
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.request(method, path, b"{}" if method == "POST" else None, headers)
        connection.getresponse().read()
    connection.close()
