"""Generates text in the process of the host application."""

import contextlib
import logging
import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import flask

from switchyard import engine
from switchyard.app.blueprint import OTHER_METHOD, OTHER_PATH, open_services
from switchyard.app.chat.request import Chat
from switchyard.app.chat.request import chat as parse_chat
from switchyard.app.config import Settings
from switchyard.app.delivery import submit as generation
from switchyard.app.delivery.reader import Reader, Submitted
from switchyard.app.delivery.watch import LOOK, WatchedClient
from switchyard.app.formats.openai import parse
from switchyard.app.formats.tokens.parse import tokenize as parse_tokenize
from switchyard.app.formats.tokens.routes import encode
from switchyard.app.host.tables import TABLES
from switchyard.app.host.text_stream import Ending, TextStream
from switchyard.app.host.worker import hint, is_ending
from switchyard.app.leases import model_of, release
from switchyard.app.operations.account import Account
from switchyard.app.services import KEY, Services, services

logger = logging.getLogger(__name__)

READING = ("GET", "HEAD", "OPTIONS")


class LocalSource:
    def __init__(self, submitted: Submitted, account: Account | None) -> None:
        self._reader = Reader(submitted)
        self._client = WatchedClient(generation.environ(), serves_half_closed=False)
        self._account = account
        self._is_closed = False

    def read(self) -> tuple[Sequence[str], Ending | Exception | None]:
        reader = self._reader
        events = self._client.wait(reader.take_events, lambda: reader.has_ended or self._is_closed)
        texts = [event.text for event in events if isinstance(event, engine.Chunk)]
        match events:
            case [*_, engine.Finished() as end]:
                return texts, Ending(end.finish_reason, end.prompt_tokens, end.new_tokens)
            case [*_, engine.Failed(_, error)]:
                return texts, error
        return texts, None

    def close(self) -> None:
        self._is_closed = True  # ends another thread's wait, which no event will end now
        self._reader.close()
        if self._account is not None:
            self._account.answered()

    def drop(self) -> None:
        # The thread that drops the iterator may hold locks that `close` takes.
        engine.ALARMS.set(0.0, self.close)


class Local:
    """The models of one application, loaded in the process that first needs them.

    The process may fork before then.
    """

    def __init__(self, app: flask.Flask, settings: Settings) -> None:
        """Raises SettingsError, engine.ModelError. Nothing is loaded yet."""
        self._app = app
        self.settings = settings
        self._lock = threading.Lock()  # guards the fields below
        self._process: int | None = None  # the process that has started the models
        self._is_closed = False
        self._given: engine.Models | None = None
        self._shared = TABLES.find(settings)
        self.services: Services = open_services(settings, self._shared.models, None)

    @property
    def models(self) -> engine.Models:
        return self.services.models

    def start(self) -> None:
        """Begins to load the models. Raises RuntimeError in a forked process."""
        hint(has_models=True)
        with self._lock:
            if self._given is not None:
                self._is_closed, self._process = False, os.getpid()
                return
            TABLES.check_process()
            if self._is_closed and self.services.ledger is not None:
                self.services.ledger.reopen()
            self._is_closed = False
            self._shared = TABLES.start(self._shared, self.settings, self, self.services.ledger)
            self.services.models = self._shared.models
            self._process = os.getpid()

    def close(self, drain: float | None = None) -> bool:
        """Like `Switchyard.close`."""
        with self._lock:
            if self._process not in (None, os.getpid()):
                return False
            self._is_closed = True
            self._process = None
            if self._given is not None:
                return True
        seconds = self.settings.grace if drain is None else drain
        is_done = TABLES.stop(self._shared, self, seconds)
        if self.services.ledger is not None:
            self.services.ledger.close()
        return is_done

    def give(self, models: engine.Models | None) -> None:
        """Uses `models`, which the caller starts and closes; if `models` is None, uses the
        application's own models again.
        """
        with self._lock:
            self._given = models
            self._is_closed, self._process = False, None
            self.services.models = models or self._shared.models

    def before_request(self) -> None:
        """Starts the models before a request to the API, unless the request only reads state or no
        route accepts it.
        """
        TABLES.check_process()
        if flask.request.endpoint in (OTHER_METHOD, OTHER_PATH):
            return
        rule = flask.request.url_rule
        is_websocket = rule is not None and rule.websocket
        if flask.request.method not in READING or is_websocket:
            self._start_once()

    def stream(self, body: dict[str, Any], is_patient: bool) -> TextStream:
        """Like `Switchyard.stream`. `body`: the body of an equivalent request."""
        self._start_once()
        self._wait_until_loaded()
        with self._context():
            account = self.services.guard.of_host()
            try:
                submitted = _submit(body, account)
            finally:
                release()
            submitted.stream.is_patient = is_patient
            return TextStream(LocalSource(submitted, account))

    def count(self, body: dict[str, Any]) -> int:
        """Like `Switchyard.count`. `body`: the body of an equivalent request."""
        with (
            self._context(),
            generation.inside(services().gate, _length_of(body), services().settings),
        ):
            request = parse_tokenize(body)
            if isinstance(request, Chat):
                request = request.with_preset(services().settings.presets)
            return len(encode(request))

    def _start_once(self) -> None:
        """Starts the models in this process. Raises engine.Dead after `close`."""
        if self._process == os.getpid():
            return
        if self._is_closed:
            raise engine.Dead(
                "this application has closed its models: call Switchyard.start to load them again"
            )
        self.start()

    def _wait_until_loaded(self) -> None:
        """Waits until the load succeeds or fails. Raises ClientGone, or engine.Draining."""
        client = WatchedClient(generation.environ(), serves_half_closed=False)
        while any(one.standing.is_loading for one in self._first()) and not self.models.is_over:
            client.check()
            if is_ending():
                raise engine.Draining(
                    "the server is shutting down, and its model is not loaded yet"
                )
            self.models.wait_until_loaded(LOOK)

    def _first(self) -> list[engine.Engine]:
        """The models that are loaded at startup."""
        models = self.models
        names = [name for name in models.names if models.served(name).load == "start"]
        return [models.get(name) for name in names]

    def _context(self) -> contextlib.AbstractContextManager[Any]:
        if flask.has_app_context() and flask.current_app.extensions.get(KEY) is self.services:
            return contextlib.nullcontext()
        return self._app.app_context()


def _submit(body: dict[str, Any], account: Account | None) -> Submitted:
    with generation.inside(services().gate, _length_of(body), services().settings):
        request: parse.Completion | Chat
        request = parse_chat(body) if "messages" in body else parse.completion(body)
        request = request.with_preset(services().settings.presets)
        model = model_of(request.model)
        with generation.names_of(request):
            if isinstance(request, Chat):
                ready = services().prompts(model).prepare(request)
                token_ids, fit = ready.token_ids, ready.fit
            else:
                token_ids = model.tokenizer.encode(body["prompt"], model.info.max_seq_len)
                fit = None
            submitted = generation.submit(
                request,
                model,
                [token_ids],
                [f"local-{uuid.uuid4().hex}-0"],
                False,
                services().settings,
                fit,
                account=account,
            )
    services().threads.prepared()
    return submitted


def _length_of(value: Any) -> int:
    """The approximate size of a value as JSON, in bytes."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(str(name)) + _length_of(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_length_of, value))
    return 4
