"""Checks, before any packages are installed and as far as Python alone can, whether a server could
start here. There must be a complete model that this machine can serve, and the port must be free.
Otherwise the script prints what is wrong and exits with status 3.
"""

import os
import pathlib
import sys
import tomllib
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE = os.environ.get("SWITCHYARD_CONFIG", "switchyard.toml")
DEFAULTS = {
    **{"model": "", "draft_model": "", "device": "auto"},
    **{"bind": "127.0.0.1:8000", "bind_wait": "0.0"},
}


def setting(name: str) -> str:
    """Reads a setting as app/config.py does, which checks it later."""
    if (value := os.environ.get(f"SWITCHYARD_{name.upper()}")) is not None:
        return value
    try:
        return str(tomllib.loads(pathlib.Path(FILE).read_text()).get(name, DEFAULTS[name]))
    except (OSError, ValueError):
        return DEFAULTS[name]


def without_packages(*names: str) -> None:
    """Makes these modules importable without any packages, but not their siblings, which need
    packages.
    """
    for name in names:
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT.joinpath(*name.split(".")))]
        sys.modules[name] = package


def check_model(path: str) -> None:
    """Raises the same errors as the loader."""
    without_packages(
        *("switchyard", "switchyard.engine", "switchyard.engine.memory", "switchyard.engine.model")
    )
    from switchyard.engine.config import ModelConfig
    from switchyard.engine.errors import ModelError
    from switchyard.engine.model.loadable import check_loadable

    draft = setting("draft_model") or None
    try:
        check_loadable(ModelConfig(path, "model", setting("device"), draft_model=draft))
    except ModelError as error:
        fail(str(error))


def check_port(bind: str) -> None:
    """Raises the same errors as the server."""
    without_packages("switchyard", "switchyard.server")
    from switchyard.server import address

    if reason := address.refusal(bind):
        fail(reason)


def fail(reason: str, status: int = 3) -> None:
    print(f"switchyard: {reason}", file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    if model := setting("model"):
        check_model(model)
    elif os.environ.get("SWITCHYARD_MODEL") is not None:
        fail("SWITCHYARD_MODEL is empty: set it to a directory, or unset it for the demo model")
    if not setting("bind_wait").strip("0."):  # otherwise the server itself waits for the port
        check_port(setting("bind"))
