"""The server's own Flask application."""

import functools
from collections.abc import Callable

import flask

from switchyard import engine
from switchyard.app import errors
from switchyard.app.blueprint import install, open_services
from switchyard.app.config import Settings
from switchyard.app.http import ignored, origins, request_id


def create_app(
    settings: Settings, models: engine.Models, terminate: Callable[[], None] | None = None
) -> flask.Flask:
    """The application that serves `models`, which the caller starts and closes.

    `terminate` ends the server as SIGTERM does, for `POST /admin/drain`; if `terminate` is None,
    the route returns status 501. Raises SettingsError.
    """
    app = flask.Flask("switchyard", static_folder=None)
    services = open_services(settings, models, terminate)
    check_host = functools.partial(origins.check_host, settings.allowed_hosts)
    install(app, services, is_own=True)
    app.before_request(check_host)
    errors.register(app, services.describe)
    request_id.register(app)
    ignored.register(app, services.settings.takes_unknown)
    return app
