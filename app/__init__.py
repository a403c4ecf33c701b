"""HTTP: Flask, JSON, server-sent events, status codes. Runs on request threads."""

from collections.abc import Callable

import flask

import engine
from app import errors, jobs, openai, ops
from app.chat_template import ChatTemplate
from app.config import Settings, SettingsError, read_settings
from app.services import KEY, Services

__all__ = ["Settings", "SettingsError", "create_app", "read_settings"]


def create_app(
    settings: Settings, models: engine.Models, terminate: Callable[[], None] | None = None
) -> flask.Flask:
    """The application over `models`, which the caller starts and closes. `terminate` ends the
    server as SIGTERM does, for `POST /admin/drain`; without it there is no such thing.
    """
    app = flask.Flask("switchyard", static_folder=None)
    templates = {name: ChatTemplate(models.get(name).model_dir) for name in models.names}
    app.extensions[KEY] = Services(settings, models, templates, terminate)
    app.register_blueprint(openai.blueprint)
    app.register_blueprint(jobs.blueprint)
    app.register_blueprint(ops.blueprint)
    errors.register(app)
    return app
