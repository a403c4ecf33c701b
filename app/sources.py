"""The sources of settings: arguments, environment, file; and errors that name the source."""

import json
import os
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args, get_origin

import pydantic
import pydantic_settings
from pydantic.fields import FieldInfo

from switchyard import engine

PREFIX = "SWITCHYARD_"
FILE = "switchyard.toml"  # in the working directory, unless CONFIG names another file
MAX_BYTES = 16 << 20  # of the file
CONFIG = f"{PREFIX}CONFIG"  # a variable: the path of the file
KEY = f"{PREFIX}KEY"  # a variable, no setting: the API key of commands and host applications
URL = f"{PREFIX}URL"  # a variable, no setting: the server of a host application


class SettingsError(Exception):
    """A setting is unknown, or its value can't be honoured.

    The message names the setting and its source. `name`: the setting, if it is known. `reason`: the
    message without both.
    """

    def __init__(self, message: str, name: str | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.reason = reason


class TomlFile(pydantic_settings.TomlConfigSettingsSource):
    """Settings in the file."""

    @staticmethod
    def _existing_files(files: Any) -> list[Any]:  # the library's would leave out a pipe, silently
        return [path for path in [Path(files)] if path.exists()]

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        data, _ = engine.read_file(file_path, MAX_BYTES)
        return tomllib.loads(data.decode())


class Environment(pydantic_settings.EnvSettingsSource):
    """Settings in the environment. Lists and tables are JSON; a list may be items with commas."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: str) -> Any:
        if _is_simple_list(field.annotation) and not value.lstrip().startswith("["):
            return [part.strip() for part in value.split(",") if part.strip()]
        try:
            return json.loads(value)
        except ValueError as reason:
            raise refusal(field_name, f"must be JSON: {reason}") from None


def check_environment(settings: Collection[str]) -> None:
    """Raises SettingsError if the environment has a variable of no setting in `settings`."""
    for name in os.environ:
        is_known = name in (CONFIG, KEY, URL) or name[len(PREFIX) :].lower() in settings
        if name.startswith(PREFIX) and not is_known:
            raise SettingsError(f"{name} in the environment is no setting of this server")
    if CONFIG in os.environ and not os.path.exists(file()):
        raise SettingsError(f"{CONFIG} in the environment: there is no file {file()!r}")


def file() -> str:
    return os.environ.get(CONFIG, FILE)


def refusal(name: str, reason: str, arguments: Collection[str] = ()) -> SettingsError:
    """The error of a setting; its message begins with the setting's place.

    `name`: the setting, perhaps with a path inside it behind a dot.
    """
    return SettingsError(f"{place(name, arguments)}: {reason}", name.partition(".")[0], reason)


def place(name: str, arguments: Collection[str] = ()) -> str:
    """The source of a setting. `arguments` of this process win, then the environment."""
    setting, dot, inside = name.partition(".")
    variables = {variable.upper(): variable for variable in os.environ}
    variable = variables.get(f"{PREFIX}{setting.upper()}")
    if setting in arguments:
        return f"argument {name}"
    if variable is not None:
        return f"{variable}{dot}{inside} in the environment"
    return f"{name} in {file()}"


def _is_simple_list(annotation: Any) -> bool:
    """Whether the type is a list whose items are no tables."""
    if get_origin(annotation) is not list:
        return False
    [item] = get_args(annotation)
    return not (isinstance(item, type) and issubclass(item, pydantic.BaseModel))
