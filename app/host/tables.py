"""The models of this process. Applications with equal settings share the same models."""

import atexit
import importlib.util
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from switchyard import engine
from switchyard.app.blueprint import open_models
from switchyard.app.chat.trial import open_tried
from switchyard.app.config import Settings
from switchyard.app.host.claims import ModelClaim
from switchyard.app.ledger.ledger import Ledger

# Set in a process of `flask run --debug`, which doesn't wait for answers when it ends.
RELOADS = "WERKZEUG_RUN_MAIN"
RELEASE = 20.0  # seconds to release the models' memory when the process ends, after their jobs

Opener = Callable[[engine.ModelConfig], engine.Engine]


class HostModels(engine.Models):
    """The models of a process that keeps running if a model fails. A failed model is reloaded after
    increasingly long waits.
    """

    is_final = False


class SharedModels:
    """Models that applications share. `users`: the applications that have started the models but
    not closed them.
    """

    def __init__(self, wanted: tuple[Any, ...], models: engine.Models, grace: float) -> None:
        self.wanted = wanted
        self.models = models
        self.grace = grace  # seconds for which jobs may continue when the process ends
        self.users: weakref.WeakSet[object] = weakref.WeakSet()
        self.claims: list[ModelClaim] = []
        self.ledgers: list[Ledger] = []  # the ledgers of users


class Tables:
    """The shared models of one process. One lock guards everything; no model is loaded or closed
    while the lock is held.
    """

    def __init__(self) -> None:
        self.open: Opener = open_tried
        self._lock = threading.Lock()
        self._tables: weakref.WeakSet[SharedModels] = weakref.WeakSet()
        self._started: set[SharedModels] = set()
        self._process: int | None = None  # the process that has started the first models

    def find(self, settings: Settings) -> SharedModels:
        """The shared models with these settings. Raises engine.ModelError."""
        with self._lock:
            return self._find(settings)

    def start(
        self, shared: SharedModels, settings: Settings, user: object, ledger: Ledger | None
    ) -> SharedModels:
        """Starts models for a user. Returns `shared`, or new models if `shared` was closed.

        `ledger`: closed after the models when the process ends. Raises RuntimeError in a forked
        process, and engine.ModelError, for example if torch is missing.
        """
        with self._lock:
            self.check_process()
            if shared.models.is_over:
                shared = self._find(settings)
            shared.users.add(user)
            if ledger is not None and ledger not in shared.ledgers:
                shared.ledgers.append(ledger)
            if shared in self._started:
                return shared
            self._check_packages(shared)
            if self._process is None:
                atexit.register(self._close_all)
                self._process = os.getpid()
            self._started.add(shared)
            served = [shared.models.served(name) for name in shared.models.names]
            shared.claims = [ModelClaim(one.config.path) for one in served if not one.config.at]
            shared.models.start()
            return shared

    def stop(self, shared: SharedModels, user: object, drain: float) -> bool:
        """Closes models unless another application uses them. Returns whether all were released."""
        with self._lock:
            shared.users.discard(user)
            if shared.users or shared not in self._started:
                return True
            self._started.remove(shared)
            shared.models.drain()  # so that `_find` no longer returns them
        is_done = shared.models.close(drain)
        for claim in shared.claims:
            claim.release()
        engine.ALARMS.rest()
        engine.give_memory_back()
        return is_done

    def check_process(self) -> None:
        """Raises RuntimeError in a process that was forked after the start."""
        if self._process not in (None, os.getpid()):
            raise RuntimeError(
                "the model was loaded before this process was forked, and threads and CUDA do not"
                " survive a fork: call Switchyard.start after the fork, or not at all"
            )

    def _check_packages(self, shared: SharedModels) -> None:
        """Raises engine.ModelError if models can't be loaded in this process."""
        own = [name for name in shared.models.names if not shared.models.served(name).config.at]
        missing = [name for name in ("torch", "exllamav2") if not importlib.util.find_spec(name)]
        if own and missing and self.open is open_tried:
            raise engine.ModelError(
                f"{missing[0]} is not installed: set `url` for client mode, or install"
                " switchyard[server], which loads models in this process"
            )

    def _find(self, settings: Settings) -> SharedModels:
        wanted = (
            *(self.open, settings.served(), settings.aliases(), settings.default_model),
            *(settings.max_loaded, settings.load_wait),
        )
        for shared in self._tables:
            if shared.wanted == wanted and not shared.models.is_over:
                return shared
        models = open_models(settings, HostModels, open=self.open)
        shared = SharedModels(wanted, models, settings.grace)
        self._tables.add(shared)
        return shared

    def _close_all(self) -> None:
        """Closes all models when the process ends. Does not wait for a running load."""
        if self._process != os.getpid():
            return
        for shared in list(self._started):
            is_loading = any(one.standing.is_loading for one in shared.models.engines)
            grace = 0.0 if RELOADS in os.environ else shared.grace
            shared.models.close(grace, 0.0 if is_loading else RELEASE)
            for ledger in shared.ledgers:
                ledger.close()


TABLES = Tables()
