"""The sources of settings: the environment and the file."""

import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, get_args, get_origin

import pydantic
import pydantic_settings
from pydantic.fields import FieldInfo

from switchyard.settings import (
    CONFIG,
    KEY,
    PREFIX,
    URL,
    SettingsError,
    check_file,
    read_toml,
    refusal,
)


class TomlFile(pydantic_settings.TomlConfigSettingsSource):
    """Settings in the configuration file."""

    # The library's function would silently ignore a pipe.
    @staticmethod
    def _existing_files(files: Any) -> list[Any]:
        return [path for path in [Path(files)] if path.exists()]

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        return read_toml(file_path)


class Environment(pydantic_settings.EnvSettingsSource):
    """Settings in the environment. Lists and tables are JSON; lists may also be comma-separated."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: str) -> Any:
        if _is_simple_list(field.annotation) and not value.lstrip().startswith("["):
            return [part.strip() for part in value.split(",") if part.strip()]
        try:
            return json.loads(value)
        except ValueError as reason:
            raise refusal(field_name, f"must be JSON: {reason}") from None


def check_environment(settings: Collection[str]) -> None:
    """Raises SettingsError if a variable that begins with SWITCHYARD_ names no setting in
    `settings`, or if the configuration file is missing.
    """
    for name in os.environ:
        is_known = name in (CONFIG, KEY, URL) or name[len(PREFIX) :].lower() in settings
        if name.startswith(PREFIX) and not is_known:
            raise SettingsError(f"{name} in the environment is not a setting of this server")
    check_file()


def _is_simple_list(annotation: Any) -> bool:
    """Whether the type is a list whose items aren't tables."""
    if get_origin(annotation) is not list:
        return False
    [item] = get_args(annotation)
    return not (isinstance(item, type) and issubclass(item, pydantic.BaseModel))
