"""`switchyard check`: could a server start with these settings? Without torch; loads nothing."""

import json
import socket
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import click

from switchyard import engine
from switchyard.app import SettingsError, read_settings
from switchyard.app.config import Settings
from switchyard.app.operations.keys import read_keys
from switchyard.cli.options import apply, with_settings


class Finding(NamedTuple):
    what: str
    is_good: bool
    message: str


@click.command()
@with_settings
@click.option("--json", "as_json", is_flag=True, help="As a list of objects.")
def check(as_json: bool, **given: Any) -> None:
    """Say what would keep a server from starting: settings, keys, model, address."""
    apply(**given)
    findings = list(find())
    if as_json:
        click.echo(json.dumps([finding._asdict() for finding in findings]))
    else:
        for what, is_good, message in findings:
            click.echo(f"{'✓' if is_good else '✗'} {what}: {message}")
    sys.exit(not all(finding.is_good for finding in findings))


def find() -> Iterator[Finding]:
    try:
        settings = read_settings()
    except SettingsError as error:
        yield Finding("settings", False, str(error))
        return
    yield Finding("settings", True, "can be read")
    if settings.keys_file:
        yield _of_keys(settings)
    yield _of_model(settings)
    yield _of_address(settings.bind)


def _of_keys(settings: Settings) -> Finding:
    try:
        table = read_keys(settings.keys_file, settings.max_priority)
    except SettingsError as error:
        return Finding("keys", False, str(error))
    return Finding("keys", True, f"{len(table.by_name)} in {settings.keys_file}")


def _of_model(settings: Settings) -> Finding:
    try:
        model_dir = engine.ModelDir.read(settings.engine_config().path)
    except engine.ModelError as error:
        return Finding("model", False, str(error))
    [architecture, *_] = model_dir.config["architectures"]
    template = "a chat template" if model_dir.chat_template else "no chat template"
    context = f"{settings.max_seq_len or model_dir.max_seq_len or '?'} tokens of context"
    told = f"{settings.model_name}, {architecture}, {model_dir.format}, {context}, {template}"
    return Finding("model", True, told)


def _of_address(bind: str) -> Finding:
    host, colon, port = bind.rpartition(":")
    if not colon or bind.startswith(("unix:", "fd://")):
        return Finding("address", True, bind)
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, int(port)))
        except OSError as error:
            return Finding("address", False, f"{bind}: {error.strerror}; choose another by --bind")
    return Finding("address", True, f"{bind} is free")
