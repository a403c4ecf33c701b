"""Edits the file of API keys. Each change is atomic, so a running server never reads a half-written
file. Comments are kept. The standard library can read TOML but not write it, so entries are edited
as text.
"""

import contextlib
import fcntl
import json
import os
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import click

from switchyard.app.operations.keys import (
    MAX_BYTES,
    ApiKey,
    KeysError,
    KeyTable,
    parse_keys,
    read_keys,
)
from switchyard.files import read_file

MAX_PRIORITY = 2**31 - 1  # upper limit of the setting max_priority


class Failed(click.ClickException):
    def show(self, file: Any = None) -> None:
        click.echo(f"switchyard: {self.message}", err=True)


def read(path: str) -> KeyTable:
    try:
        return read_keys(path, MAX_PRIORITY, has_ledger=True, may_be_empty=True)
    except KeysError as error:
        raise Failed(str(error)) from None


def block(values: dict[str, Any]) -> str:
    """Returns a TOML block. JSON strings, numbers and lists are also valid in TOML."""
    expires = values.get("expires")
    try:
        when = None if expires is None else datetime.fromisoformat(expires)
    except ValueError:
        when = None
    if expires is not None and (when is None or when.tzinfo is None):
        raise click.UsageError(f"--expires {expires}: must be a time such as 2027-01-01T00:00:00Z")
    if when is not None and when <= datetime.now(UTC):
        raise click.UsageError(f"--expires {expires}: is in the past")
    lines = [
        f"{name} = {when.isoformat() if name == 'expires' and when else json.dumps(value)}"
        for name, value in values.items()
    ]
    return "\n".join(["[[keys]]", *lines, ""])


def place(parts: list[str], name: str, path: str) -> int:
    """The index of the block that holds the entry."""
    for i, part in enumerate(parts):
        entries = tomllib.loads(part).get("keys", [])
        if any(entry["name"] == name for entry in entries):
            if len(entries) == 1:
                return i
            raise Failed(f"{path} can't be edited, because it has multi-line strings or lists")
    raise Failed(f"{path} has no key named {name}")


def edit(
    path: str,
    change: Callable[[str], str],
    expected: set[str],
    max_priority: int = MAX_PRIORITY,
) -> None:
    """Replaces the file in one step. Raises Failed unless a server with this `max_priority` could
    read the result, and the result differs only in the `expected` entries.
    """
    with _locked(os.path.dirname(path)):
        before = read(path) if os.path.exists(path) else None
        text = read_file(path, MAX_BYTES)[0].decode() if before is not None else ""
        changed = change(text)
        try:
            after = parse_keys(changed, max_priority, has_ledger=True)
        except KeysError as error:
            raise Failed(f"{path}: {error}") from None
        if not after.by_name:
            raise Failed(
                f"{path}: this is the file's only key, and a server needs at least one: add another"
                " key first, or disable this key with `disabled = true`"
            )
        known = {} if before is None else before.by_name
        if not _differ(known, after.by_name) <= expected:
            raise Failed(f"{path} can't be edited safely: change it by hand")
        _replace(path, changed)


def _differ(before: Mapping[str, ApiKey], after: Mapping[str, ApiKey]) -> set[str]:
    names = before.keys() | after.keys()
    return {name for name in names if before.get(name) != after.get(name)}


@contextlib.contextmanager
def _locked(directory: str) -> Iterator[None]:
    """Prevents other commands from editing the file at the same time."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise Failed(f"{directory}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(path: str, text: str) -> None:
    """Replaces the file, but keeps its owner and mode; a new file gets mode 0600."""
    directory = os.path.dirname(path)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=".keys-")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                if os.path.exists(path):
                    status = os.stat(path)
                    os.fchmod(file.fileno(), status.st_mode & 0o777)
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        folder = os.open(directory, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
    except OSError as error:
        raise Failed(f"{path}: {error.strerror}") from None
