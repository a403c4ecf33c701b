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
HUGE = 100_000  # keys
KEYS, MODELS = "keys.toml", "models"


def entry(name, key, **more):
    digest = hashlib.sha256(key.encode()).hexdigest()
    more = {"name": name, "hash": f"sha256:{digest}", "role": "user", **more}
    lines = [f"{name} = {json.dumps(value)}" for name, value in more.items()]
    return "\n".join(["[[keys]]", *lines, ""])


def write_keys(path, *more):
    """As an editor does: whole, and then in the place of the old one."""
    beside = path.with_suffix(".new")
    beside.touch(0o600)
    beside.write_text("\n".join([entry("good", GOOD), entry("op", ADMIN, role="admin"), *more]))
    beside.replace(path)


def authorized(key):
    return {"Authorization": f"Bearer {key}"}


class Keyed:
    """The good client has a key."""

    good = authorized(GOOD)

    def prepare(self, directory):
        write_keys(pathlib.Path(directory, KEYS))
        return {"keys_file": f"{directory}/{KEYS}"}


class KeysFile(Keyed):
    """The file of keys becomes another thing, and itself again, in turns of a second."""

    def __init__(self, spoil):
        self.spoil = spoil

    def run(self, port, deadline, directory):
        path = pathlib.Path(directory, KEYS)
        for change in itertools.cycle([self.spoil, write_keys]):
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
            if (left := deadline - time.monotonic()) <= 0:
                return
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=left)
            headers = {"Content-Type": "application/json", **authorized(ADMIN)}
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", f"/admin/models/{name}", b"{}", headers)
                connection.getresponse().read()
            connection.close()
