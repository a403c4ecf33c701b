"""The services that the views of one application use."""

import functools
import logging
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec

import flask

from switchyard import engine
from switchyard.app.chat.prompt import Prompts
from switchyard.app.chat.template import ChatTemplate
from switchyard.app.chat.turns.store import StoredTurns
from switchyard.app.config import Settings
from switchyard.app.delivery.answers import Answers
from switchyard.app.engine_settings import ModelSettings
from switchyard.app.errors import Describe
from switchyard.app.http.gate import Gate
from switchyard.app.http.places import Places
from switchyard.app.http.threads import Threads
from switchyard.app.ledger.ledger import Ledger
from switchyard.app.metrics.metrics import Metrics
from switchyard.app.openapi.contract import REPEATABLE
from switchyard.app.operations.guard import Checks, Guard

logger = logging.getLogger(__name__)

KEY = "switchyard"
BLUEPRINT = "switchyard_api"  # a host may have a blueprint named `switchyard`
SHOWN = "switchyard_services"  # name in flask.g, for a key that may not use all models

Arguments = ParamSpec("Arguments")
View = Callable[Arguments, flask.Response]
Templates = weakref.WeakKeyDictionary[engine.Engine, ChatTemplate]


@dataclass(slots=True, eq=False)
class Services:
    """The services of one application. Only `models` is ever replaced."""

    settings: Settings
    models: engine.Models
    blueprints: tuple[flask.Blueprint, ...]  # the blueprints of the wire formats
    describe: Describe  # describes errors in the wire format of the current request
    answers: Answers
    stored: StoredTurns  # responses that clients may continue
    gate: Gate
    websockets: Places
    threads: Threads
    terminate: Callable[[], None] | None  # ends the server as SIGTERM does, now or soon
    checks: Checks | None  # None without API keys
    guard: Guard
    metrics: Metrics | None
    ledger: Ledger | None  # the ledger of usage, which the caller starts and closes
    _templates: Templates = field(default_factory=weakref.WeakKeyDictionary)

    def template(self, model: engine.Engine) -> ChatTemplate:
        """The chat template of a model. A fault in the template is logged once. Raises
        engine.ModelError.
        """
        found = self._templates.get(model)
        if found is None:
            found = self._templates[model] = ChatTemplate(model.model_dir)
            if found.fault is not None:
                logger.warning("model %s: %s", model.config.name, found.fault)
        return found

    def prompts(self, model: engine.Engine) -> Prompts:
        """The prompt builder for chats with a model. Raises engine.ModelError."""
        about = model.about
        settings = about if isinstance(about, ModelSettings) else self.settings
        return Prompts(model, self.template(model), settings)


def services() -> Services:
    """The services for the current request, with the models that its key may use."""
    found: Services = flask.g.get(SHOWN) or flask.current_app.extensions[KEY]
    return found


def repeatable(view: View[Arguments]) -> View[Arguments]:
    """Lets clients repeat requests to a view. With an Idempotency-Key they get the same response,
    and with a Last-Event-ID the rest of a stream. This decorator goes below `declares`.
    """

    @functools.wraps(view)
    def answer(*args: Arguments.args, **kwargs: Arguments.kwargs) -> flask.Response:
        return services().answers.resume_or_answer(lambda: view(*args, **kwargs))

    setattr(answer, REPEATABLE, True)
    return answer
