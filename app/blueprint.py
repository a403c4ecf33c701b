"""Installs the API in a Flask application, either the server's own or a host application."""

import codecs
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import flask
import werkzeug.exceptions
import werkzeug.routing

from switchyard import engine
from switchyard.app import errors
from switchyard.app.chat.trial import open_tried, try_all
from switchyard.app.chat.turns.store import StoredTurns
from switchyard.app.config import Settings
from switchyard.app.delivery import submit
from switchyard.app.delivery.answers import Answers
from switchyard.app.formats.format import describe, load
from switchyard.app.formats.models import make_blueprint
from switchyard.app.http import ignored, origins, request_id
from switchyard.app.http.gate import Gate
from switchyard.app.http.places import Places
from switchyard.app.http.threads import Threads
from switchyard.app.leases import release
from switchyard.app.ledger.ledger import Ledger
from switchyard.app.metrics.metrics import Metrics
from switchyard.app.openapi import page
from switchyard.app.openapi.contract import needs
from switchyard.app.operations.access import AccessLog
from switchyard.app.operations.account import Recorder, account_of
from switchyard.app.operations.guard import Guard, open_checks
from switchyard.app.routes import (
    admin,
    health,
    lifecycle,
    metrics,
    probes,
    requests,
    router,
    status,
    streams,
    usage,
)
from switchyard.app.services import BLUEPRINT, KEY, SHOWN, Services
from switchyard.app.ui import files

logger = logging.getLogger(__name__)

# Werkzeug needs this codec in each request. If the first two lookups happen at the same time in two
# threads, one thread can find the module half imported. Python then remembers that there is no such
# codec.
codecs.lookup("idna")

# Paths under /v1 that also exist without the prefix, as in llama.cpp's server.
UNPREFIXED = (
    *("/models", "/chat/completions", "/completions", "/messages"),
    *("/responses", "/responses/<identifier>"),
    *("/chat/completions/input_tokens", "/responses/input_tokens", "/messages/count_tokens"),
)


# Names of endpoints.
OTHER_METHOD, OTHER_PATH = f"{BLUEPRINT}.other_method", f"{BLUEPRINT}.other_path"


def install(
    app: flask.Flask,
    services: Services,
    url_prefix: str | None = None,
    before_request: Sequence[Callable[[], Any]] = (),
    is_own: bool = False,
    check_host: Callable[[], Any] | None = None,
) -> None:
    """Adds the API to `app`. The caller starts the models that the API uses.

    The API handles only the errors of its own routes. `check_host` is called before API keys are
    checked, and `before_request` is called after the check. `is_own`: whether `app` is the server's
    own application. A host application without `url_prefix` gets no short paths such as `/health`.
    """
    api = flask.Blueprint(BLUEPRINT, __name__, url_prefix=url_prefix)
    if check_host is not None:
        api.before_request(check_host)
    services.guard.register(app if is_own else api, api)
    if services.checks is not None:
        api.before_request(partial(_show_models, services))
    for call in before_request:
        api.before_request(call)
    for blueprint in services.blueprints:
        api.register_blueprint(blueprint)
    if not page.ASSETS:
        logger.info("the page /docs/ is left out: install switchyard[docs]")
    # This order is also the order in the OpenAPI document.
    for part in (requests, streams, status, usage, health, probes, page):
        api.register_blueprint(part.blueprint)
    if services.metrics is not None:
        api.register_blueprint(metrics.make_blueprint(services.settings.metrics == "key"))
    if is_own or url_prefix:
        api.register_blueprint(probes.short)
        api.register_blueprint(router.blueprint)
        api.register_blueprint(_make_unprefixed())
    if is_own:
        api.register_blueprint(probes.root)
        if services.settings.ui:
            api.register_blueprint(files.make_blueprint(services.settings))
    api.register_blueprint(admin.blueprint)
    api.register_blueprint(lifecycle.blueprint)
    errors.register(api, services.describe)
    origins.register(api, services.settings.cors_origins)
    request_id.register(api)
    ignored.register(api, services.settings.takes_unknown)
    api.teardown_request(partial(_leave, services))
    app.extensions[KEY] = services
    app.register_blueprint(api)
    for name in services.models.names:
        services.template(services.models.get(name))  # logs faults at startup


def _make_unprefixed() -> flask.Blueprint:
    """Adds a second rule, without `/v1`, for each path in UNPREFIXED. The OpenAPI document omits
    these rules.
    """
    blueprint = flask.Blueprint("switchyard_unprefixed", __name__)

    def add(state: flask.blueprints.BlueprintSetupState) -> None:
        prefix = state.url_prefix or ""
        paths = {f"{prefix}/v1{path}": f"{prefix}{path}" for path in UNPREFIXED}
        for rule in list(state.app.url_map.iter_rules()):
            if rule.rule in paths and rule.endpoint.startswith(f"{state.name_prefix}."):
                methods = (rule.methods or set()) - {"HEAD", "OPTIONS"}  # Flask adds these
                state.app.add_url_rule(
                    paths[rule.rule],
                    rule.endpoint,
                    methods=methods,
                    strict_slashes=rule.strict_slashes,
                )

    blueprint.record(add)
    return blueprint


def refuse_other_methods(app: flask.Flask) -> None:
    """Adds a rule to each path of the API for the methods that the path doesn't allow. Without
    these rules, the host application would handle the error instead of the blueprint.
    """
    allowed: dict[str, set[str]] = {}
    for rule in app.url_map.iter_rules():
        if rule.endpoint.startswith(f"{BLUEPRINT}."):
            allowed.setdefault(rule.rule, set()).update(rule.methods or ())

    @needs("public")
    def other_method(**_: str) -> flask.Response:
        rule = flask.request.url_rule
        assert rule is not None
        if flask.request.method in allowed[rule.rule]:
            raise werkzeug.routing.WebsocketMismatch
        raise werkzeug.exceptions.MethodNotAllowed(sorted(allowed[rule.rule]))

    app.view_functions[OTHER_METHOD] = other_method
    for path in allowed:  # `add_url_rule` can't add a rule that matches every method
        app.url_map.add(app.url_rule_class(path, methods=None, endpoint=OTHER_METHOD))


def refuse_other_paths(app: flask.Flask, url_prefix: str) -> None:
    """Adds a rule for all paths below the prefix that no other rule matches. Without this rule,
    requests to these paths would get the host application's error page. The host application's own
    rules below the prefix take precedence.
    """

    @needs("public")
    def other_path(path: str) -> flask.Response:
        raise werkzeug.exceptions.NotFound

    app.view_functions[OTHER_PATH] = other_path
    app.url_map.add(app.url_rule_class(f"{url_prefix}/<path:path>", None, endpoint=OTHER_PATH))


def open_models(
    settings: Settings, kind: type[engine.Models] = engine.Models, **more: Any
) -> engine.Models:
    """Creates the models that the settings name, without starting them. Raises
    engine.ModelError.
    """
    served = settings.served()
    if more.setdefault("open", open_tried) is open_tried:
        try_all(served)  # a directory that fails here fails again when it is opened
    return kind(
        served,
        settings.aliases(),
        default=settings.default_model,
        max_loaded=settings.max_loaded,
        load_wait=settings.load_wait,
        **more,
    )


def open_services(
    settings: Settings, models: engine.Models, terminate: Callable[[], None] | None
) -> Services:
    """The services of one application. `terminate` ends the server as SIGTERM does, and may return
    before the server has ended.

    Raises SettingsError if the key file or the ledger can't be used.
    """
    ledger = None
    recorders: list[Recorder] = []
    if settings.ledger:
        ledger = Ledger(settings.ledger, settings.ledger_days, bool(settings.keys_file))
        recorders.append(ledger)
    checks = open_checks(settings, ledger)
    if settings.access_log:
        recorders.append(AccessLog())
    settings = settings.fitted(max((models.get(name).context for name in models.names), default=0))
    websockets, threads = Places(settings.max_websockets), Threads()

    def num_jobs() -> int:
        return found.models.num_jobs

    gate = Gate(settings.max_pending, settings.max_jobs, num_jobs, threads.prepared)
    formats = load(settings.formats)
    answers = Answers(settings, num_jobs, threads.prepared)
    numbers = None
    if settings.metrics != "off":
        numbers = Metrics(lambda: found.models, answers, websockets, threads, checks, ledger)
        recorders.append(numbers.requests)
    found = Services(
        settings,
        models,
        (*(format.blueprint for format in formats), make_blueprint(formats)),
        partial(describe, formats),
        answers,
        StoredTurns(settings.max_stored_bytes, settings.store_timeout),
        gate,
        websockets,
        threads,
        terminate,
        checks,
        Guard(settings, checks, recorders),
        numbers,
        ledger,
    )
    return found


def _show_models(services: Services) -> None:
    """Limits the models of the current request to those that the request's API key may use."""
    account = account_of(flask.request.environ)
    if account is None or account.quota is None:
        return
    key = account.quota.key
    names = [name for name in services.models.names if key.may_use(name)]
    if len(names) < len(services.models.names):
        setattr(flask.g, SHOWN, replace(services, models=services.models.only(names)))


def _leave(services: Services, error: BaseException | None) -> None:
    """At the end of a request, leaves the gate if the request is still inside, and releases the
    request's leases.

    Also deletes expired stored responses.
    """
    services.stored.forget_old()
    submit.leave()
    release()
