"""The production server for ExLlamaV2 models, and a Flask extension.

Most of its code is in `app/` and `engine/`, next to this folder. These are imported as
`switchyard.app` and `switchyard.engine`, which can't collide with a host application's own
packages.
"""

import importlib
import pathlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchyard.app.config import Settings, read_settings
    from switchyard.app.create import create_app
    from switchyard.app.exceptions import (
        BadRequest,
        BodyTimeout,
        BudgetSpent,
        ClientGone,
        LimitReached,
        NotPermitted,
        TimedOut,
        Unauthorized,
    )
    from switchyard.app.extension import Switchyard
    from switchyard.app.host.text_stream import Result, TextStream
    from switchyard.engine.errors import (
        BatchFailed,
        Closed,
        ConstraintTooSlow,
        Dead,
        DeviceLost,
        Draining,
        EngineError,
        Failure,
        Full,
        InvalidJob,
        JobFailed,
        Loading,
        LoadUnderWay,
        ModelError,
        ModelNotFound,
        NoRoom,
        NotOurs,
        OutOfMemory,
        PromptTooLong,
        Refused,
        Rejected,
        Stalled,
        Unloaded,
    )
    from switchyard.errors import SwitchyardError
    from switchyard.settings import SettingsError

__version__ = "0.2.0"  # its only place: pyproject.toml reads it

__all__ = [
    "BadRequest",
    "BatchFailed",
    "BodyTimeout",
    "BudgetSpent",
    "ClientGone",
    "Closed",
    "ConstraintTooSlow",
    "Dead",
    "DeviceLost",
    "Draining",
    "EngineError",
    "Failure",
    "Full",
    "InvalidJob",
    "JobFailed",
    "LimitReached",
    "LoadUnderWay",
    "Loading",
    "ModelError",
    "ModelNotFound",
    "NoRoom",
    "NotOurs",
    "NotPermitted",
    "OutOfMemory",
    "PromptTooLong",
    "Refused",
    "Rejected",
    "Result",
    "Settings",
    "SettingsError",
    "Stalled",
    "Switchyard",
    "SwitchyardError",
    "TextStream",
    "TimedOut",
    "Unauthorized",
    "Unloaded",
    "create_app",
    "read_settings",
]

# The modules that define these names.
_MODULES = {
    "app.config": (
        "Settings",
        "read_settings",
    ),
    "app.create": ("create_app",),
    "app.exceptions": (
        "BadRequest",
        "BodyTimeout",
        "BudgetSpent",
        "ClientGone",
        "LimitReached",
        "NotPermitted",
        "TimedOut",
        "Unauthorized",
    ),
    "app.extension": ("Switchyard",),
    "app.host.text_stream": (
        "Result",
        "TextStream",
    ),
    "engine.errors": (
        "BatchFailed",
        "Closed",
        "ConstraintTooSlow",
        "Dead",
        "DeviceLost",
        "Draining",
        "EngineError",
        "Failure",
        "Full",
        "InvalidJob",
        "JobFailed",
        "LoadUnderWay",
        "Loading",
        "ModelError",
        "ModelNotFound",
        "NoRoom",
        "NotOurs",
        "OutOfMemory",
        "PromptTooLong",
        "Refused",
        "Rejected",
        "Stalled",
        "Unloaded",
    ),
    "errors": ("SwitchyardError",),
    "settings": ("SettingsError",),
}

if pathlib.Path(__file__).with_name("app").is_file():  # git on Windows checks links out as files
    raise ImportError(
        "switchyard/app is a file instead of a link: clone with -c core.symlinks=true, or"
        " install a wheel"
    )


def __getattr__(name: str) -> Any:
    """Imports names on first use, so that an engine's process doesn't import Flask."""
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
