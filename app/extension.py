"""A model in a Flask application, in the manner of Flask's extensions."""

import atexit
import contextlib
import functools
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import flask

from switchyard import engine
from switchyard.app.blueprint import install, open_models, open_services
from switchyard.app.chat.request import Chat
from switchyard.app.chat.request import chat as parse_chat
from switchyard.app.config import Settings, read_settings
from switchyard.app.delivery import submit as generation
from switchyard.app.delivery.framing import raise_failure
from switchyard.app.delivery.reader import Reader, Submitted
from switchyard.app.delivery.watch import WatchedClient
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.openai import parse
from switchyard.app.http import origins
from switchyard.app.leases import model_of, release
from switchyard.app.ledger.ledger import Ledger
from switchyard.app.operations.account import Account
from switchyard.app.services import KEY, Services, services
from switchyard.app.sources import PREFIX, SettingsError

# Parameters of requests that shape an answer into what `generate` doesn't return.
MEANINGLESS = (
    "stream",
    "stream_options",
    "n",
    "best_of",
    "echo",
    "timings",
    "return_progress",
    "logprobs",
    "top_logprobs",
    "tools",
)


@dataclass(frozen=True, slots=True)
class Result:
    """A completion. `finish_reason`: "stop", "length" or "cancelled"."""

    text: str
    finish_reason: engine.FinishReason
    prompt_tokens: int
    completion_tokens: int


class TextStream(Iterator[str]):
    """Pieces of a completion as they come. To close it cancels what has not been generated."""

    def __init__(self, submitted: Submitted, account: Account | None = None) -> None:
        self.result: Result | None = None  # once the last piece has been taken
        self._reader = Reader(submitted)
        self._client = WatchedClient(generation.environ(), serves_half_closed=False)
        self._texts: list[str] = []
        self._account = account

    def __next__(self) -> str:
        """Raises what `generate` does while it waits."""
        reader = self._reader
        while self.result is None and not reader.has_ended:
            events = self._client.wait(reader.take_events, lambda: reader.has_ended)
            raise_failure(events)
            text = "".join(event.text for event in events if isinstance(event, engine.Chunk))
            self._texts.append(text)
            for event in events:
                if isinstance(event, engine.Finished):
                    self.result = Result(
                        "".join(self._texts),
                        event.finish_reason,
                        event.prompt_tokens,
                        event.new_tokens,
                    )
            if self.result is not None:
                self._end()
            if text:
                return text
        raise StopIteration

    def close(self) -> None:
        self._reader.close()
        self._end()

    def _end(self) -> None:
        if self._account is not None:
            self._account.answered()


class Switchyard:
    """Adds the API to a Flask application, and the model to its views.

    It is loaded in the process that serves the first request, or calls `start`; so a fork before
    that is no harm. Settings: those given here, `app.config` (SWITCHYARD_MODEL and so on), the
    environment, switchyard.toml, the first that has one.
    """

    def __init__(
        self,
        app: flask.Flask | None = None,
        *,
        url_prefix: str | None = None,
        before_request: Callable[[], Any] | None = None,
        **settings: Any,
    ) -> None:
        """`before_request`: called before each request of the API, in the manner of Flask's; what
        it returns, if anything, is the answer. Raises what `init_app` does.
        """
        self._url_prefix = url_prefix
        self._before_request = before_request
        self._settings = settings
        self._app: flask.Flask | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Raises SettingsError, also for a file of keys, or engine.ModelError if there is no model
        where there should be. Nothing is loaded yet.
        """
        settings = read_settings(**(_settings_of(app.config) | self._settings))
        models = open_models(settings)
        services = open_services(settings, models, None)
        starter = Starter(models, settings.grace, services.ledger)
        before_request: list[Callable[[], Any]] = [starter]
        if self._before_request is not None:
            before_request.insert(0, self._before_request)
        check_host = None
        if settings.allowed_hosts:  # else it is the host application's business
            check_host = functools.partial(origins.check_host, settings.allowed_hosts)
        install(app, services, self._url_prefix, before_request, check_host=check_host)
        app.extensions[f"{KEY}_starter"] = starter
        self._app = app

    @property
    def models(self) -> engine.Models:
        """Those of the current application, else of the one that was given last."""
        services: Services = self._extensions()[KEY]
        return services.models

    def start(self) -> None:
        """Begin to load in this process; returns at once. Once more does nothing."""
        self._extensions()[f"{KEY}_starter"]()

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: list[dict[str, Any]] | None = None,
        **parameters: Any,
    ) -> Result:
        """A completion of `prompt`, or the answer to `messages`; `parameters` as in requests.

        Waits for it, also while the model loads. Raises BadRequest or engine.Rejected for what
        can't be honoured, engine.Refused where there is no room, engine.Failure for a generation
        that fails, TimedOut, and ClientGone if the client of the current request has left.
        """
        stream = self._stream(prompt, messages, parameters, is_patient=True)
        try:
            for _ in stream:
                pass
        finally:
            stream.close()
        assert stream.result is not None  # a job ends with Finished or raises
        return stream.result

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: list[dict[str, Any]] | None = None,
        **parameters: Any,
    ) -> TextStream:
        """Like `generate`, piece by piece. What can be refused at once is, before this returns."""
        return self._stream(prompt, messages, parameters, is_patient=False)

    def _stream(
        self,
        prompt: str | None,
        messages: list[dict[str, Any]] | None,
        parameters: dict[str, Any],
        is_patient: bool,
    ) -> TextStream:
        self.start()
        self.models.wait_until_loaded()
        with self._context():
            account = services().guard.of_host()
            try:
                submitted = _submit(prompt, messages, parameters, account)
            finally:
                release()
            submitted.stream.is_patient = is_patient
            return TextStream(submitted, account)

    def _extensions(self) -> dict[str, Any]:
        if flask.has_app_context() and KEY in flask.current_app.extensions:
            return flask.current_app.extensions
        if self._app is None:
            raise RuntimeError("Switchyard has no application yet: call init_app")
        return self._app.extensions

    def _context(self) -> contextlib.AbstractContextManager[Any]:
        if flask.has_app_context() and KEY in flask.current_app.extensions:
            return contextlib.nullcontext()
        assert self._app is not None  # or `start` would have raised
        return self._app.app_context()


class Starter:
    """Loads the models, once, in the process that first needs them; releases them at its end."""

    def __init__(self, models: engine.Models, grace: float, ledger: Ledger | None) -> None:
        self._models = models
        self._ledger = ledger
        self._grace = grace
        self._lock = threading.Lock()  # guards what follows
        self._process: int | None = None

    def __call__(self) -> None:
        if self._process == os.getpid():
            return
        with self._lock:
            if self._process is None:
                self._models.start()
                if self._ledger is not None:  # which starts with the first request
                    atexit.register(self._ledger.close)
                atexit.register(self._models.close, drain=self._grace)
                self._process = os.getpid()
            elif self._process != os.getpid():
                raise RuntimeError(
                    "the model was loaded before this process was forked, and threads and CUDA do"
                    " not survive that: call Switchyard.start after the fork, or not at all"
                )


def _settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {k[len(PREFIX) :].lower(): v for k, v in config.items() if k.startswith(PREFIX)}
    for name in found:
        if name not in Settings.model_fields:
            raise SettingsError(f"{PREFIX}{name.upper()} in app.config is no setting of Switchyard")
    return found


def _submit(
    prompt: str | None,
    messages: list[dict[str, Any]] | None,
    parameters: dict[str, Any],
    account: Account | None,
) -> Submitted:
    if (prompt is None) == (messages is None):
        raise BadRequest("give prompt or messages, one of them", "prompt")
    for name in MEANINGLESS:
        if name in parameters:
            raise BadRequest(f"{name} has no meaning here", name, "unsupported_parameter")
    size = _length_of([prompt, messages, parameters])
    with generation.inside(services().gate, size, services().settings):
        request: parse.Completion | Chat
        if messages is None:
            request = parse.completion({"prompt": prompt, **parameters})
        else:
            request = parse_chat({"messages": messages, **parameters})
        request = request.with_preset(services().settings.presets)
        model = model_of(request.model)
        with generation.names_of(request):
            if isinstance(request, Chat):
                ready = services().prompts(model).prepare(request)
                token_ids, fit = ready.token_ids, ready.fit
            else:
                assert prompt is not None
                token_ids, fit = model.tokenizer.encode(prompt, model.info.max_seq_len), None
            identifier = f"local-{uuid.uuid4().hex}-0"
            return generation.submit(
                request,
                model,
                [token_ids],
                [identifier],
                False,
                services().settings,
                fit,
                account=account,
            )


def _length_of(value: Any) -> int:
    """About as many bytes as it would have as JSON."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(len(str(name)) + _length_of(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_length_of, value))
    return 4
