"""From what is configured of a model to an engine that can load it."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from switchyard.engine.backends import make_backend
from switchyard.engine.backends.base import Backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.links.base import Deliver, Link
from switchyard.engine.links.pipe import PipeLink
from switchyard.engine.links.replicas import ReplicaLink
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.memory.gpus import check_gpus, has_gpu, shares
from switchyard.engine.messages import LoadProgress


def open_engine(config: ModelConfig) -> Engine:
    """An engine, not started; its thread is where `config` says. Raises ModelError."""
    check_gpus(config)
    parts = [replace(config, gpus=part) for part in shares(config)]

    def make_link(deliver: Deliver) -> Link:
        if has_own_process(config):  # which has grammars of its own
            makers = [(one.gpus, partial(_to_process, one)) for one in parts]
            return ReplicaLink(config, makers, deliver)

        def open_backend() -> Backend:
            return _open(make_backend, config, engine.grammars, deliver)

        return EngineThread(config, open_backend, deliver)

    engine = Engine(config, make_link)
    return engine


def _to_process(config: ModelConfig, deliver: Deliver) -> PipeLink:
    return PipeLink(config, partial(_open, make_backend, config, None), deliver)


def has_own_process(config: ModelConfig) -> bool:
    """By default on a GPU: request threads beside it take up to half of its speed. On the CPU
    nothing is gained.
    """
    if config.replicas > 1:
        return True
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
