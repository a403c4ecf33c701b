"""The HTTP layer: Flask, JSON, server-sent events, status codes. Runs on request threads."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from switchyard.app.config import Settings, read_settings
    from switchyard.app.create import create_app
    from switchyard.app.exceptions import BadRequest, ClientGone, TimedOut
    from switchyard.app.extension import Switchyard
    from switchyard.app.host.text_stream import Result, TextStream
    from switchyard.settings import SettingsError

__all__ = [
    "BadRequest",
    "ClientGone",
    "Result",
    "Settings",
    "SettingsError",
    "Switchyard",
    "TextStream",
    "TimedOut",
    "create_app",
    "read_settings",
]


def __getattr__(name: str) -> Any:
    """Imports each name on first use, so that a command that needs only one module of this package
    does not import Flask.
    """
    if name in __all__:
        import switchyard

        return getattr(switchyard, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
