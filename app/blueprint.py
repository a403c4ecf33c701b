"""The API over models that the caller starts, for an application or a part of one."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import flask

from switchyard import engine
from switchyard.app import errors, origins
from switchyard.app.chat.template import ChatTemplate
from switchyard.app.config import Settings
from switchyard.app.delivery import submit
from switchyard.app.delivery.answers import Answers
from switchyard.app.formats.format import describe, load
from switchyard.app.formats.models import make_blueprint
from switchyard.app.http import ignored, request_id
from switchyard.app.http.gate import Gate
from switchyard.app.http.places import Places
from switchyard.app.openapi import page
from switchyard.app.routes import health, requests, streams
from switchyard.app.services import KEY, Services

logger = logging.getLogger(__name__)


def install(
    app: flask.Flask,
    services: Services,
    url_prefix: str | None = None,
    before_request: Sequence[Callable[[], Any]] = (),
) -> None:
    """Add the API over models that the caller starts. Handles the errors of its own routes only."""
    api = flask.Blueprint("switchyard", __name__, url_prefix=url_prefix)
    for call in before_request:
        api.before_request(call)
    for blueprint in services.blueprints:
        api.register_blueprint(blueprint)
    if not page.ASSETS:
        logger.warning("the page /docs/ is left out: install switchyard[docs]")
    for part in (requests, streams, health, page):
        api.register_blueprint(part.blueprint)
    errors.register(api, services.describe)
    origins.register(api, services.settings.cors_origins)
    request_id.register(api)
    ignored.register(api)
    api.teardown_request(_leave)
    app.extensions[KEY] = services
    app.register_blueprint(api)


def open_services(
    settings: Settings, models: engine.Models, terminate: Callable[[], None] | None
) -> Services:
    """`terminate` does what SIGTERM does, at once or soon."""
    settings = settings.fitted(max((models.get(name).context for name in models.names), default=0))
    templates = {name: ChatTemplate(models.get(name).model_dir) for name in models.names}
    websockets = Places(settings.max_websockets)
    max_jobs = settings.max_batch_size + settings.max_pending
    gate = Gate(settings.max_pending, max_jobs, lambda: models.num_jobs)
    formats = load(settings.formats)
    return Services(
        settings,
        models,
        (*(format.blueprint for format in formats), make_blueprint(formats)),
        partial(describe, formats),
        Answers(settings),
        gate,
        templates,
        websockets,
        terminate,
    )


def _leave(error: BaseException | None) -> None:
    """The gate, for a request that has ended before it was submitted, or that never is."""
    submit.leave()
