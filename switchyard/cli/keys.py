"""`switchyard keys`: creates, lists and revokes API keys."""

import functools
import hashlib
import json
import os
import secrets
import sys
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec

import click

from switchyard import settings
from switchyard.app.operations.keys import blocks, read_keys
from switchyard.cli.keys_file import Failed, block, edit, place, read
from switchyard.settings import SettingsError

P = ParamSpec("P")

PREFIX = "sk-sy-"
NUM_BYTES = 32
MIN_GIVEN = 20  # characters of a key that the operator supplies

HEAD = "# Switchyard's API keys, only as hashes: see docs/operations.md.\n"


@click.group()
@click.option("--file", help="The key file. Default: the `keys_file` setting.")
@click.pass_context
def keys(context: click.Context, file: str | None) -> None:
    """Create, list and revoke API keys."""
    context.obj = file


def with_file(command: Callable[Concatenate[str, P], None]) -> Callable[P, None]:
    """Calls a command with the path of the key file. The command's help works without a path."""

    @click.pass_obj
    @functools.wraps(command)
    def run(file: str | None, /, *args: P.args, **options: P.kwargs) -> None:
        try:
            path = file or settings.text("keys_file", "")
        except SettingsError as error:
            raise Failed(str(error)) from None
        if not path:
            raise click.UsageError("no key file: give --file, or set keys_file in the settings")
        # The real path; otherwise an edit would replace a link with a file.
        command(os.path.realpath(path), *args, **options)

    return run


@keys.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["user", "metrics", "admin"]),
    help="Role of the key. Default: user.",
)
@click.option("--model", "models", multiple=True, help="A model that the key may use; repeatable.")
@click.option("--rpm", type=int, help="Maximum number of requests per minute.")
@click.option(
    "--tpm",
    type=int,
    help="Maximum number of tokens per minute: computed prompt tokens and new tokens.",
)
@click.option("--concurrency", type=int, help="Maximum number of concurrent requests.")
@click.option("--max-tokens", type=int, help="Maximum number of new tokens per request.")
@click.option("--budget-tokens", type=int, help="Tokens per --budget-period, including prompts.")
@click.option("--budget-period", type=click.Choice(["day", "month", "total"]))
@click.option("--priority", type=int, help="Default priority of its requests.")
@click.option("--max-priority", type=int, help="Maximum priority of its requests.")
@click.option("--expires", help="Expiry, such as 2027-01-01T00:00:00Z.")
@click.option("--note", help="A note, such as the owner.")
@click.option("--stdin", "is_given", is_flag=True, help="Read the key from standard input.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@with_file
def add(path: str, /, name: str, is_given: bool, as_json: bool, **limits: Any) -> None:
    """Add a key and print it. It can't be shown again."""
    key = _given() if is_given else _made()
    values = {k: list(v) if k == "models" else v for k, v in limits.items() if v not in (None, ())}
    entry = block({"name": name, "hash": _hash(key), **values})
    if os.path.exists(path) and name in read(path).by_name:
        raise Failed(
            f"{path} already has a key named {name}: edit the file to change its limits, or"
            " `rotate` it to give it a new value"
        )
    edit(
        path,
        lambda text: (text or HEAD).rstrip("\n") + f"\n\n{entry}",
        expected={name},
        max_priority=_max_priority(),
    )
    _show(name, None if is_given else key, as_json)


@keys.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@with_file
def list_keys(path: str, as_json: bool) -> None:
    """List the keys, without their hashes."""
    entries = list(read(path).by_name.values())
    if as_json:
        shown = [e.model_dump(mode="json", exclude={"hash"}, exclude_none=True) for e in entries]
        click.echo(json.dumps(shown))
        return
    for entry in entries:
        told = entry.model_dump(
            mode="json", exclude={"name", "hash", "role"}, exclude_defaults=True
        )
        limits = " ".join(f"{k}={json.dumps(v)}" for k, v in told.items())
        state = "" if entry.is_valid(datetime.now(UTC)) else "  (not valid)"
        click.echo(f"{entry.name}  {entry.role}  {limits}{state}".rstrip())


@keys.command()
@click.argument("name")
@with_file
def remove(path: str, name: str) -> None:
    """Revoke a key. Requests that are already running with the key finish."""

    def without(text: str) -> str:
        parts = blocks(text)
        return "".join(part for i, part in enumerate(parts) if i != place(parts, name, path))

    edit(path, without, expected={name})
    click.echo(f"{name} is removed")


@keys.command()
@click.argument("name")
@click.option("--stdin", "is_given", is_flag=True, help="Read the key from standard input.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@with_file
def rotate(path: str, name: str, is_given: bool, as_json: bool) -> None:
    """Give the API key named NAME a new value, and keep its other settings."""
    key = _given() if is_given else _made()

    def rotated(text: str) -> str:
        parts = blocks(text)
        i = place(parts, name, path)
        [entry] = tomllib.loads(parts[i])["keys"]
        parts[i] = parts[i].replace(entry["hash"], _hash(key))
        return "".join(parts)

    edit(path, rotated, expected={name}, max_priority=_max_priority())
    _show(name, None if is_given else key, as_json)


@keys.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@with_file
def check(path: str, as_json: bool) -> None:
    """Check whether a server could read the file."""
    try:
        has_ledger = bool(settings.text("ledger", ""))
        table = read_keys(path, settings.whole_number("max_priority", 0), has_ledger)
        number = len(table.by_name)
        message, is_good = f"{number} key{'' if number == 1 else 's'}", True
    except SettingsError as error:
        message, is_good = str(error), False
    if as_json:
        click.echo(json.dumps({"is_good": is_good, "message": message}))
    else:
        click.echo(f"{'✓' if is_good else '✗'} {path}: {message}")
    sys.exit(not is_good)


def _max_priority() -> int:
    """The server's own limit, which the keys' limits can't exceed."""
    try:
        return settings.whole_number("max_priority", 0)
    except SettingsError as error:
        raise Failed(str(error)) from None


def _made() -> str:
    return PREFIX + secrets.token_urlsafe(NUM_BYTES)


def _given() -> str:
    key = sys.stdin.readline().strip()
    if len(key) < MIN_GIVEN or not key.isascii() or not key.isprintable() or " " in key:
        raise click.UsageError(
            f"--stdin: a key must have at least {MIN_GIVEN} printable ASCII characters, without"
            " spaces"
        )
    return key


def _hash(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def _show(name: str, key: str | None, as_json: bool) -> None:
    """`key`: None if the operator has supplied it."""
    if as_json:
        click.echo(json.dumps({"name": name} | ({} if key is None else {"key": key})))
    elif key is None:
        click.echo(f"{name} now has this key", err=True)
    else:
        click.echo(f"New API key for {name}. Copy it now; it can't be shown again:", err=True)
        click.echo(key)
