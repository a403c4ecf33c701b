"""A scripted model for tests of applications that use the extension. The model needs neither torch
nor a thread, but routes, validation and streaming are real.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, Self

from switchyard import engine
from switchyard.app.blueprint import open_models
from switchyard.app.config import read_settings
from switchyard.app.create import create_app
from switchyard.app.engine_settings import DEFAULT_MODEL
from switchyard.app.extension import HOST
from switchyard.app.host.remote import Remote
from switchyard.app.host.tables import TABLES
from switchyard.testing.script import Answer, FakeEngine, Script
from switchyard.testing.server import ServerInProcess

__all__ = ["Fake", "fake", "faking"]


class FakeModels(engine.Models):
    """A table whose engines need neither loading nor regular checks."""

    def start(self) -> None:
        self._process = os.getpid()
        for one in self.engines:
            one.start()


# Settings of the server that replaces a real one. The names of the real one's models are unknown.
ANY_NAME: dict[str, Any] = {
    **{"model": DEFAULT_MODEL, "name": "demo", "models": [], "default_model": None},
    "model_aliases": {"*": "demo"},
}
FAKES = f"{HOST}_fakes"  # in an application's extensions: those that aren't closed


class Fake:
    """Replaces the models of one application, until `close`, or until the `with` block ends. If
    there are several fakes, the most recent one that isn't closed is in effect.
    """

    def __init__(self, app: Any, answers: Mapping[str, Answer] | None = None) -> None:
        if HOST not in app.extensions:
            raise RuntimeError(f"the application {app.name} has no Switchyard: call init_app first")
        self._host = app.extensions[HOST]
        self._script = Script(dict(answers or {}))
        is_remote = isinstance(self._host, Remote)
        settings = read_settings(**ANY_NAME) if is_remote else self._host.settings
        models = open_models(settings, open=self._script.open, kind=FakeModels)
        models.start()
        self._models = models
        self._server = ServerInProcess(create_app(settings, models)) if is_remote else None
        self._fakes: list[Fake] = app.extensions.setdefault(FAKES, [])
        self._fakes.append(self)
        self._replace()

    @property
    def answers(self) -> dict[str, Answer]:
        """The script, which tests may change."""
        return self._script.answers

    @property
    def prompts(self) -> list[str]:
        """The prompts so far, as the template renders them, in order of arrival."""
        return self._script.prompts

    def close(self) -> None:
        """Restores the previous script, or otherwise the application's own models. Idempotent."""
        if self in self._fakes:
            self._fakes.remove(self)
            self._replace()
        self._models.close()

    def _replace(self) -> None:
        latest = self._fakes[-1] if self._fakes else None
        if isinstance(self._host, Remote):
            self._host.upstream.mount(latest._server if latest else None)
        else:
            self._host.give(latest._models if latest else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def fake(app: Any, answers: Mapping[str, Answer] | None = None) -> Fake:
    """Makes the model that a Flask application uses through the extension give answers from a
    script. If a prompt contains several keys, it gets the answer for the key that ends last. An
    answer is a string, an exception to raise, or a tuple of a string and the exception that follows
    it. Exceptions are those in `switchyard.engine`, `switchyard.app` and
    `switchyard.app.exceptions`. A prompt without any key gets a text that says so.

    The tokenizer and the chat template are the application's own; in client mode, they are the demo
    model's, whatever the model's name. Limits on tokens apply, but sampling parameters have no
    effect.
    """
    return Fake(app, answers)


@contextlib.contextmanager
def faking() -> Iterator[Any]:
    """Yields `fake`, and then closes everything that it has made. An application created inside the
    `with` block needs no model on this machine; the demo model's tokenizer replaces a missing one.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(setattr, TABLES, "open", TABLES.open)
        TABLES.open = FakeEngine.by(Script({}))

        def make(app: Any, answers: Mapping[str, Answer] | None = None) -> Fake:
            return stack.enter_context(fake(app, answers))

        yield make
