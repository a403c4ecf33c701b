"""What several commands take: where the settings come from."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from switchyard.app.config import CONFIG, PREFIX, Settings

Command = TypeVar("Command", bound=Callable[..., Any])


def with_settings(command: Command) -> Command:
    """MODEL_DIR, --bind, --set and --config, which `apply` takes."""
    for option in (
        click.argument("model_dir", required=False),
        click.option("--bind", help="Where to listen: HOST:PORT, or unix:PATH."),
        click.option(
            "--set",
            "assigned",
            multiple=True,
            metavar="NAME=VALUE",
            help="A setting, as SWITCHYARD_NAME; any number of times.",
        ),
        click.option("--config", help="File of settings, in place of ./switchyard.toml."),
    ):
        command = option(command)
    return command


def apply(
    model_dir: str | None, bind: str | None, assigned: tuple[str, ...], config: str | None
) -> None:
    """Into the environment, which wins over the file. Raises click.UsageError."""
    for item in assigned:
        name, is_given, value = item.partition("=")
        if not is_given or name not in Settings.model_fields:
            raise click.UsageError(f"--set {item}: must be NAME=VALUE, NAME one of the settings")
        os.environ[f"{PREFIX}{name.upper()}"] = value
    if config is not None:
        if not os.path.isfile(config):
            raise click.UsageError(f"--config {config}: there is no such file")
        os.environ[CONFIG] = os.path.abspath(config)
    for name, given in (("MODEL", model_dir), ("BIND", bind)):
        if given is not None:
            os.environ[f"{PREFIX}{name}"] = given
