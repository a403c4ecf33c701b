"""What the views of one application work with."""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec

import flask

from switchyard import engine
from switchyard.app.chat.prompt import Prompts
from switchyard.app.chat.template import ChatTemplate
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

KEY = "switchyard"
SHOWN = "switchyard_services"  # in flask.g, where a key may not use all

Arguments = ParamSpec("Arguments")
View = Callable[Arguments, flask.Response]
Templates = weakref.WeakKeyDictionary[engine.Engine, ChatTemplate]


@dataclass(slots=True, eq=False)
class Services:
    """Nothing is changed but `models`, where others take their place."""

    settings: Settings
    models: engine.Models
    blueprints: tuple[flask.Blueprint, ...]  # of the wire formats
    describe: Describe  # errors, in the words of the current request's client
    answers: Answers
    gate: Gate
    websockets: Places  # for each that may be open
    threads: Threads
    terminate: Callable[[], None] | None  # does what SIGTERM does, at once or soon
    checks: Checks | None  # of API keys, where they are asked for
    guard: Guard
    metrics: Metrics | None
    ledger: Ledger | None  # of usage; the caller starts and closes it
    _templates: Templates = field(default_factory=weakref.WeakKeyDictionary)

    def template(self, model: engine.Engine) -> ChatTemplate:
        """Raises engine.ModelError for one that can't be read."""
        found = self._templates.get(model)
        if found is None:
            found = self._templates[model] = ChatTemplate(model.model_dir)
        return found

    def prompts(self, model: engine.Engine) -> Prompts:
        """What makes a model's prompts of conversations."""
        about = model.about
        settings = about if isinstance(about, ModelSettings) else self.settings
        return Prompts(model, self.template(model), settings)


def services() -> Services:
    """Those of the application that serves the current request, as far as its key may use them."""
    found: Services = flask.g.get(SHOWN) or flask.current_app.extensions[KEY]
    return found


def repeatable(view: View[Arguments]) -> View[Arguments]:
    """A view whose requests may come again: with an Idempotency-Key, for the same answer, or with
    a Last-Event-ID, for the rest of a stream. Below what declares its contract.
    """

    @functools.wraps(view)
    def answer(*args: Arguments.args, **kwargs: Arguments.kwargs) -> flask.Response:
        return services().answers.resume_or_answer(lambda: view(*args, **kwargs))

    setattr(answer, REPEATABLE, True)
    return answer
