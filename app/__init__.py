"""HTTP: Flask, JSON, server-sent events, status codes. Runs on request threads."""

import flask

import engine
from app import errors, jobs, openai, ops
from app.chat_template import ChatTemplate
from app.config import Settings, SettingsError, read_settings
from app.services import KEY, Services

__all__ = ["Settings", "SettingsError", "create_app", "read_settings"]


def create_app(settings: Settings, models: engine.Models) -> flask.Flask:
    """The application over `models`, which the caller starts and closes."""
    app = flask.Flask("switchyard", static_folder=None)
    templates = {name: ChatTemplate(models.get(name).model_dir) for name in models.names}
    app.extensions[KEY] = Services(settings, models, templates)
    app.register_blueprint(openai.blueprint)
    app.register_blueprint(jobs.blueprint)
    app.register_blueprint(ops.blueprint)
    errors.register(app)
    return app
