"""HTTP: Flask, JSON, server-sent events, status codes. Runs on request threads."""

from switchyard.app.config import Settings, read_settings
from switchyard.app.create import create_app
from switchyard.app.exceptions import BadRequest, ClientGone, TimedOut
from switchyard.app.extension import Switchyard
from switchyard.app.host.text_stream import Result, TextStream
from switchyard.app.sources import SettingsError

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
