"""Where settings stand: arguments, the environment, a file; and what is said of wrong ones."""

import json
import os
from collections.abc import Collection
from typing import Any, get_args, get_origin

import pydantic
import pydantic_settings
from pydantic.fields import FieldInfo

PREFIX = "SWITCHYARD_"
FILE = "switchyard.toml"  # in the working directory, unless the environment names another
CONFIG = f"{PREFIX}CONFIG"  # by this variable
KEY = f"{PREFIX}KEY"  # no setting: the API key that commands and host applications ask with
URL = f"{PREFIX}URL"  # nor this: the server that a host application asks


class SettingsError(Exception):
    """A setting is unknown or has a value that can't be honoured; the message says which, and where
    it stands. `name` is the setting, if it is one, and `reason` the message without them.
    """

    def __init__(self, message: str, name: str | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.reason = reason


class Environment(pydantic_settings.EnvSettingsSource):
    """Lists and tables are JSON there. Lists may have commas between their items instead."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: str) -> Any:
        if _is_simple_list(field.annotation) and not value.lstrip().startswith("["):
            return [part.strip() for part in value.split(",") if part.strip()]
        try:
            return json.loads(value)
        except ValueError as reason:
            raise refusal(field_name, f"must be JSON: {reason}") from None


def check_environment(settings: Collection[str]) -> None:
    """That it names none but these. Raises SettingsError."""
    for name in os.environ:
        is_known = name in (CONFIG, KEY, URL) or name[len(PREFIX) :].lower() in settings
        if name.startswith(PREFIX) and not is_known:
            raise SettingsError(f"{name} in the environment is no setting of this server")
    if CONFIG in os.environ and not os.path.isfile(file()):
        raise SettingsError(f"{CONFIG} in the environment: there is no file {file()!r}")


def file() -> str:
    return os.environ.get(CONFIG, FILE)


def refusal(name: str, reason: str, arguments: Collection[str] = ()) -> SettingsError:
    """`name`: of the setting, maybe with dots and what is inside. Its place goes first."""
    return SettingsError(f"{place(name, arguments)}: {reason}", name.partition(".")[0], reason)


def place(name: str, arguments: Collection[str] = ()) -> str:
    """Where a setting stands: the `arguments` given to this process win, then the environment."""
    setting, dot, inside = name.partition(".")
    variables = {variable.upper(): variable for variable in os.environ}
    variable = variables.get(f"{PREFIX}{setting.upper()}")
    if setting in arguments:
        return f"argument {name}"
    if variable is not None:
        return f"{variable}{dot}{inside} in the environment"
    return f"{name} in {file()}"


def _is_simple_list(annotation: Any) -> bool:
    """Whether its items are no tables."""
    if get_origin(annotation) is not list:
        return False
    [item] = get_args(annotation)
    return not (isinstance(item, type) and issubclass(item, pydantic.BaseModel))
