"""The production server for ExLlamaV2 models, and a Flask extension.

Its code lies beside this folder, in `app/` and `engine/`. The import names are `switchyard.app` and
`switchyard.engine`, which can't collide with a host application's.
"""

import pathlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchyard.app import Result, Switchyard, TextStream, create_app, read_settings

__version__ = "0.1.0"  # the same as in pyproject.toml

__all__ = ["Result", "Switchyard", "TextStream", "create_app", "read_settings"]

if pathlib.Path(__file__).with_name("app").is_file():  # git on Windows checks links out as files
    raise ImportError(
        "switchyard/app is a file, where git has a link: clone with -c core.symlinks=true, or"
        " install a wheel"
    )


def __getattr__(name: str) -> Any:
    """Import on first use: an engine's process imports no Flask."""
    if name in __all__:
        from switchyard import app

        return getattr(app, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
