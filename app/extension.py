"""The Flask extension: the API and the model in a host application."""

import functools
import os
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import flask

from switchyard import engine
from switchyard.app.blueprint import install, refuse_other_methods, refuse_other_paths
from switchyard.app.config import Settings, read_settings
from switchyard.app.errors import PLAIN_KINDS
from switchyard.app.exceptions import ClientGone
from switchyard.app.host.asked import asked
from switchyard.app.host.local import Local
from switchyard.app.host.passing import make_passing
from switchyard.app.host.remote import CONCERNING, Remote
from switchyard.app.host.text_stream import Result, TextStream
from switchyard.app.host.worker import hint
from switchyard.app.http import origins
from switchyard.app.services import KEY
from switchyard.settings import KEY as KEY_VARIABLE
from switchyard.settings import PREFIX, URL, SettingsError

HOST = f"{KEY}_host"  # key in an application's extensions, of its `Local` or `Remote`


class Switchyard:
    """Adds the API to a Flask application, and lets the application's views use the model.

    The model is loaded at the first request for text, or by `start`, so the process may fork before
    then. Applications in one process that have the same configuration share the model. A setting is
    taken from the first of these that has it: arguments, `app.config` (for example,
    SWITCHYARD_MODEL), the environment, switchyard.toml.

    `url`: the address of a Switchyard server whose models are used, for applications with several
    processes. With `url`, this process loads no model, and passes requests below `url_prefix` on to
    that server. `key`: the API key for `generate`, `stream` and `count`. `url` and `key` may also
    come from `app.config` and the environment.
    """

    def __init__(
        self,
        app: flask.Flask | None = None,
        *,
        url: str | None = None,
        key: str | None = None,
        url_prefix: str | None = None,
        before_request: Callable[[], Any] | None = None,
        **settings: Any,
    ) -> None:
        """`before_request`: called before each request to the API, like Flask's `before_request`;
        if it returns a value, that value is the response. `settings`: settings by name. Raises
        SettingsError, and the exceptions of `init_app`.
        """
        if url_prefix and not url_prefix.startswith("/"):
            raise SettingsError(f"url_prefix: {url_prefix!r} must begin with a slash", "url_prefix")
        self._url = url
        self._key = key
        self._url_prefix = url_prefix
        self._before_request = before_request
        self._settings = settings
        self._app: flask.Flask | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask) -> None:
        """Adds the extension to `app`. Loads no model yet.

        Raises SettingsError, for example for an invalid key file; engine.ModelError for a missing
        model; RuntimeError for a second extension in one application.
        """
        if HOST in app.extensions:
            raise RuntimeError(
                f"the application {app.name} already has a Switchyard extension: use that one"
            )
        config = {k: v for k, v in app.config.items() if k.startswith(PREFIX)}
        url, key = config.pop(URL, None), config.pop(KEY_VARIABLE, None)
        url = self._url or url or os.environ.get(URL)
        key = self._key or key or os.environ.get(KEY_VARIABLE)
        given = _settings_of(config) | self._settings
        hint(has_models=not url)
        app.extensions[HOST] = (
            self._open_remote(app, url, key, given) if url else self._open_local(app, given)
        )
        # Otherwise each visitor who leaves would cause a traceback in the host's log, and run the
        # host's handler for status 500.
        if ClientGone not in app.error_handler_spec[None][None]:
            app.register_error_handler(ClientGone, _end_of_visit)
        self._app = app

    @property
    def models(self) -> engine.Models:
        """The models of the current application, or else of the application that was last passed to
        `init_app`. Raises RuntimeError in client mode, where a server has the models.
        """
        return self._host().models

    def start(self) -> None:
        """Starts loading the models in this process, and returns at once. Idempotent until
        `close`.
        """
        self._host().start()

    def close(self, drain: float | None = None) -> bool:
        """Releases the models, unless another application of the process uses them.

        Waits for the models' jobs, at most `drain` seconds; the default is the `grace` setting.
        Requests are refused until the next `start`. Returns whether everything was released.
        """
        return self._host().close(drain)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def generate(
        self,
        prompt: str | None = None,
        *,
        messages: list[dict[str, Any]] | None = None,
        **parameters: Any,
    ) -> Result:
        """A completion of `prompt`, or the answer to `messages`. `parameters`: the parameters of a
        request. Waits for the model to load and for the whole text. Raises BadRequest or
        engine.Rejected for a wrong parameter, engine.Refused if there is no room, and
        engine.Failure for a failed generation. Also raises TimedOut, and ClientGone if the client
        of the current request has left.
        """
        with self._host().stream(asked(prompt, messages, parameters), is_patient=True) as stream:
            for _ in stream:
                pass
        assert stream.result is not None  # a job either ends with Finished or raises an error
        return stream.result

    def stream(
        self,
        prompt: str | None = None,
        *,
        messages: list[dict[str, Any]] | None = None,
        **parameters: Any,
    ) -> TextStream:
        """Like `generate`, but yields the text piece by piece. Waits for the first piece, and
        raises any error that occurs before it. Later errors are raised during the iteration.
        """
        stream = self._host().stream(asked(prompt, messages, parameters), is_patient=False)
        stream.wait()
        return stream

    def count(
        self,
        prompt: str | None = None,
        *,
        messages: list[dict[str, Any]] | None = None,
        **parameters: Any,
    ) -> int:
        """The number of prompt tokens in `prompt`, or in `messages` when rendered with the model's
        template.

        `parameters`: with `messages`, the parameters of a chat, such as `chat_template_kwargs`;
        with `prompt`, only `model`. Works while the model loads. Raises BadRequest,
        engine.Rejected, engine.ModelNotFound, and, in client mode, the exceptions of `generate`.
        """
        return self._host().count(asked(prompt, messages, parameters))

    def _open_local(self, app: flask.Flask, given: Mapping[str, Any]) -> Local:
        settings = read_settings(**given)
        host = Local(app, settings)
        before_request = [host.before_request]
        if self._before_request is not None:
            before_request.insert(0, self._before_request)
        check_host = _check_host(settings)
        install(app, host.services, self._url_prefix, before_request, check_host=check_host)
        refuse_other_methods(app)
        if prefix := (self._url_prefix or "").rstrip("/"):
            refuse_other_paths(app, prefix)
        return host

    def _open_remote(
        self, app: flask.Flask, url: str, key: str | None, given: Mapping[str, Any]
    ) -> Remote:
        for name in given.keys() - CONCERNING:
            raise SettingsError(f"{name} has no effect here, because the models run on {url}", name)
        settings = read_settings(**given)
        host = Remote(url, key, settings)
        if self._url_prefix:
            first = [_check_host(settings), self._before_request]
            calls = [call for call in first if call is not None]
            app.register_blueprint(make_passing(host.upstream, settings, self._url_prefix, calls))
        return host

    def _host(self) -> Local | Remote:
        app = self._app
        if flask.has_app_context() and HOST in flask.current_app.extensions:
            app = flask.current_app
        if app is None:
            raise RuntimeError("Switchyard has no application yet: call init_app")
        host: Local | Remote = app.extensions[HOST]
        return host


def _end_of_visit(error: ClientGone) -> tuple[str, int]:
    """The response to a client that has left. Only the access log shows its status."""
    return "", PLAIN_KINDS[ClientGone].status


def _check_host(settings: Settings) -> Callable[[], None] | None:
    """The function that checks `Host`. None without `allowed_hosts`; the host application then does
    its own checks.
    """
    if not settings.allowed_hosts:
        return None
    return functools.partial(origins.check_host, settings.allowed_hosts)


def _settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    found = {k[len(PREFIX) :].lower(): v for k, v in config.items() if k.startswith(PREFIX)}
    for name in found:
        if name not in Settings.model_fields:
            raise SettingsError(f"{PREFIX}{name.upper()} in app.config is not a Switchyard setting")
    return found
