"""Finds the sources of settings, and reads single settings for commands that don't need all of
them. Uses only the standard library, because loading all settings, with `switchyard.app.config`, is
slow.
"""

import os
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from switchyard.errors import SwitchyardError
from switchyard.files import read_file

PREFIX = "SWITCHYARD_"
FILE = "switchyard.toml"  # in the working directory, unless CONFIG names another file
MAX_BYTES = 16 << 20  # of the file
CONFIG = f"{PREFIX}CONFIG"  # a variable: the path of the file
KEY = f"{PREFIX}KEY"  # a variable, not a setting: the API key of commands and host applications
URL = f"{PREFIX}URL"  # a variable, not a setting: the server of a host application
DEFAULT_BIND = "127.0.0.1:8000"


class SettingsError(SwitchyardError):
    """A setting is unknown, or its value can't be used.

    The message names the setting and its source. `name`: the setting, if it is known. `reason`: the
    message without the name and the source.
    """

    def __init__(self, message: str, name: str | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.name = name
        self.reason = reason


def file() -> str:
    return os.environ.get(CONFIG, FILE)


def check_file() -> None:
    """Raises SettingsError if the CONFIG variable names a file that doesn't exist."""
    if CONFIG in os.environ and not os.path.exists(file()):
        raise SettingsError(f"{CONFIG} in the environment: there is no file {file()!r}")


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Raises OSError or ValueError."""
    data, _ = read_file(path, MAX_BYTES)
    return tomllib.loads(data.decode())


def refusal(name: str, reason: str, arguments: Collection[str] = ()) -> SettingsError:
    """Returns the error for a setting. Its message begins with the setting's source.

    `name`: the setting, which may be followed by a dot and a path inside it.
    """
    return SettingsError(f"{place(name, arguments)}: {reason}", name.partition(".")[0], reason)


def place(name: str, arguments: Collection[str] = ()) -> str:
    """The source of a setting. This process's `arguments` take precedence, followed by the
    environment.
    """
    setting, dot, inside = name.partition(".")
    if setting in arguments:
        return f"argument {name}"
    if (variable := _variable(setting)) is not None:
        return f"{variable}{dot}{inside} in the environment"
    return f"{name} in {file()}"


def text(name: str, default: str) -> str:
    """Returns one setting that is a string. Raises SettingsError if it can't be read."""
    value = _value(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise refusal(name, "must be a string")
    return value


def whole_number(name: str, default: int) -> int:
    """Returns one setting that is a whole number, 0 or above. Raises SettingsError if it can't be
    read.
    """
    value = _value(name)
    if value is None:
        return default
    if not re.fullmatch(r"[0-9]{1,10}", str(value)):
        raise refusal(name, "must be a whole number, 0 or above")
    return int(str(value))


def bind() -> str:
    """The address that the server listens on. Raises SettingsError."""
    try:
        return check_bind(text("bind", DEFAULT_BIND))
    except ValueError as error:
        raise refusal("bind", str(error)) from None


def check_bind(value: str) -> str:
    """Returns the value. Raises ValueError if it is not an address."""
    port = re.fullmatch(r"(?:\[.+\]|[^\[\]]+):(\d+)", value, re.ASCII)
    if not value.startswith(("unix:", "fd://")) and (not port or int(port[1]) > 65535):
        raise ValueError("must be HOST:PORT, [HOST]:PORT, unix:PATH or fd://NUMBER")
    return value


def _value(name: str) -> object:
    if (variable := _variable(name)) is not None:
        return os.environ[variable]
    check_file()
    if not Path(file()).exists():
        return None
    try:
        return read_toml(file()).get(name)
    except (ValueError, OSError) as error:
        raise SettingsError(f"{file()}: {error}") from None


def _variable(name: str) -> str | None:
    """The name of the environment variable for the setting, in upper or lower case."""
    variables = {variable.upper(): variable for variable in os.environ}
    return variables.get(f"{PREFIX}{name.upper()}")
