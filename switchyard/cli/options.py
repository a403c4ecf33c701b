"""Options that several commands share: the sources of the settings."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from switchyard.app.config import Settings, read_settings
from switchyard.settings import PREFIX, SettingsError

Command = TypeVar("Command", bound=Callable[..., Any])


def with_settings(command: Command) -> Command:
    """Adds MODEL_DIR, --bind and --set, the arguments of `read`."""
    bind = click.option("--bind", help="Where to listen: HOST:PORT, or unix:PATH.")
    return bind(with_model_settings(command))


def with_model_settings(command: Command) -> Command:
    """Like `with_settings`, without --bind, for commands that don't listen at `bind`."""
    for option in (
        click.argument("model_dir", required=False),
        click.option(
            "--set",
            "assigned",
            multiple=True,
            metavar="NAME=VALUE",
            help="Override a setting; repeatable.",
        ),
    ):
        command = option(command)
    return command


def read(
    model_dir: str | None,
    assigned: tuple[str, ...],
    bind: str | None = None,
) -> Settings:
    """Returns the settings. Options are also put into the environment, which takes precedence over
    the file. Raises click.UsageError, or SettingsError with the option's name.
    """
    options = {}
    for item in assigned:
        name, is_given, value = item.partition("=")
        if not is_given or name not in Settings.model_fields:
            raise click.UsageError(f"--set {item}: must be NAME=VALUE, where NAME is a setting")
        os.environ[f"{PREFIX}{name.upper()}"] = value
        options[name] = f"--set {name}"
    for name, option, given in (("model", "MODEL_DIR", model_dir), ("bind", "--bind", bind)):
        if given is not None:
            os.environ[f"{PREFIX}{name.upper()}"] = given
            options[name] = option
    try:
        return read_settings().given_by(options)
    except SettingsError as error:
        if error.name not in options:
            raise
        raise SettingsError(f"{options[error.name]}: {error.reason}") from None
