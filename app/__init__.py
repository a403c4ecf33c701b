"""HTTP: Flask, JSON, server-sent events, status codes. Runs on request threads."""

from collections.abc import Callable

import flask

import engine
from app import errors
from app.config import Settings, SettingsError, read_settings
from app.delivery.deadlines import TimedOut
from app.extension import Result, Switchyard, TextStream, install, open_services
from app.http import request_id
from app.http.body import BadRequest
from app.http.client import ClientGone

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


def create_app(
    settings: Settings, models: engine.Models, terminate: Callable[[], None] | None = None
) -> flask.Flask:
    """The application over `models`, which the caller starts and closes. `terminate` ends the
    server as SIGTERM does, for `POST /admin/drain`; without it there is no such thing.
    """
    app = flask.Flask("switchyard", static_folder=None)
    install(app, open_services(settings, models, terminate))
    errors.register(app)
    request_id.register(app)
    return app
