"""Which engine serves which model name."""

import copy
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from switchyard.engine.backends import make_backend
from switchyard.engine.backends.base import Backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from switchyard.engine.errors import ModelError, ModelNotFound
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.links.base import Deliver, Link
from switchyard.engine.links.pipe import PipeLink
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.memory.gpus import has_gpu
from switchyard.engine.messages import LoadProgress
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer


def open_engine(config: ModelConfig) -> Engine:
    """An engine, not started; its thread is where `config` says. Raises ModelError."""
    grammars = Grammars(Tokenizer(ModelDir.read(config.path)))

    def make_link(deliver: Deliver) -> Link:
        if has_own_process(config):  # which has grammars of its own
            return PipeLink(config, partial(_open, make_backend, config, None), deliver)
        return EngineThread(config, lambda: _open(make_backend, config, grammars, deliver), deliver)

    return Engine(config, make_link, grammars)


def has_own_process(config: ModelConfig) -> bool:
    """By default on a GPU: request threads beside it take up to half of its speed. On the CPU
    nothing is gained.
    """
    if config.link != "auto":
        return config.link == "process"
    return config.device == "cuda" or (config.device == "auto" and has_gpu())


def _open(
    make: Callable[..., Backend], config: ModelConfig, grammars: Grammars | None, deliver: Deliver
) -> Backend:
    """Called on the engine thread, maybe in another process."""

    def tell_progress(share: float) -> None:
        deliver([LoadProgress(share)])

    return make(config, grammars, tell_progress)


class Models:
    """All engines of this server. The first is the default."""

    def __init__(self, engines: Iterable[Engine], aliases: Mapping[str, str] | None = None) -> None:
        """`aliases`: other names that engines are found by. One may end in `*`, which stands for
        any rest. Raises ModelError for one that stands for no engine.
        """
        self._engines = {engine.config.name: engine for engine in engines}
        self._aliases = dict(aliases or {})
        for alias, name in self._aliases.items():
            if name not in self._engines:
                raise ModelError(
                    f"model_aliases: {alias!r} stands for {name!r}, which is no model that is"
                    f" served; there is: {', '.join(self.names)}",
                    "model_aliases",
                )
        self._stopped: queue.SimpleQueue[Engine] = queue.SimpleQueue()
        self._process: int | None = None  # that has started them
        for engine in self._engines.values():
            engine.on_stopped(self._stopped.put)

    @property
    def names(self) -> list[str]:
        """Without aliases."""
        return list(self._engines)

    @property
    def num_jobs(self) -> int:
        """Jobs of all that have not ended, active or pending."""
        return sum(engine.num_jobs for engine in self._engines.values())

    def get(self, name: str | None = None) -> Engine:
        """The engine of that name, or alias, or the default one. Raises ModelNotFound."""
        if name is None and self._engines:
            return next(iter(self._engines.values()))
        if not self._engines:  # of `only`
            raise ModelNotFound("this API key may use no model that is served", "model")
        name = name or ""
        engine = self._engines.get(name) or self._engines.get(self._aliased(name))
        if engine is None:
            raise ModelNotFound(
                f"model {name[:100]!r} does not exist; there is: {', '.join(self.names) or 'none'}",
                "model",
            )
        return engine

    def only(self, names: Collection[str]) -> "Models":
        """As if there were no others; the engines are the same."""
        some = copy.copy(self)
        some._engines = {name: e for name, e in self._engines.items() if name in names}
        return some

    def _aliased(self, name: str) -> str:
        """What the alias stands for that is `name`, or else the longest whose `*` fits it."""
        fitting = [a for a in self._aliases if a.endswith("*") and name.startswith(a[:-1])]
        alias = name if name in self._aliases else max(fitting, key=len, default=name)
        return self._aliases.get(alias, name)

    def start(self) -> None:
        """Begin to load all; returns at once."""
        self._process = os.getpid()
        for engine in self._engines.values():
            engine.start()

    def wait_until_loaded(self, timeout: float | None = None) -> bool:
        """Whether all are ready within `timeout` seconds; False at once if one has failed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for engine in self._engines.values():
            left = None if deadline is None else deadline - time.monotonic()
            if not engine.wait_until_loaded(left):
                return False
        return True

    def wait_until_stopped(self, timeout: float | None = None) -> Engine | None:
        """The next engine that has stopped; None if none does within `timeout` seconds. If it
        has an `error` it was not told to: only another process can serve its model.
        """
        try:
            return self._stopped.get(timeout=timeout)
        except queue.Empty:
            return None

    def drain(self) -> None:
        """Let all take no more jobs; returns at once."""
        for engine in self._engines.values():
            engine.drain()

    def close(self, drain: float = 0.0, timeout: float | None = None) -> bool:
        """Close all at the same time, as `Engine.close` does. Whether all were done in time.

        At once, and False, in a fork of the process that has started them: it has jobs and locks of
        theirs, and no thread that would end or release them.
        """
        if self._process not in (None, os.getpid()):
            return False
        results: list[bool] = []
        first, *others = self._engines.values()
        threads = [
            threading.Thread(
                target=lambda e=engine: results.append(e.close(drain, timeout)),
                name=f"close-{engine.config.name}",
            )
            for engine in others
        ]
        for thread in threads:
            thread.start()
        results.append(first.close(drain, timeout))  # needs no thread, if the system has none left
        for thread in threads:
            thread.join()
        return all(results)
