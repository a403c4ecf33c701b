"""Creates an engine from the configuration of a model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from switchyard.engine.backends import make_backend
from switchyard.engine.backends.base import Backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from switchyard.engine.errors import ModelError
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.links.base import Deliver, Link
from switchyard.engine.links.hosts.address import check, check_source, is_tcp
from switchyard.engine.links.hosts.host import Host
from switchyard.engine.links.hosts.introduction import Welcome
from switchyard.engine.links.hosts.key import KeyFile
from switchyard.engine.links.hosts.knock import look
from switchyard.engine.links.hosts.members import FollowingLink, Members
from switchyard.engine.links.hosts.socket_link import SocketLink
from switchyard.engine.links.pipe import PipeLink
from switchyard.engine.links.replicas import ReplicaLink
from switchyard.engine.links.roster import MakeLink
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.memory.gpus import check_gpus, has_gpu, shares
from switchyard.engine.messages import LoadProgress
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.sources import is_source
from switchyard.engine.trial.trial import check_tried


def open_engine(config: ModelConfig, readers: Sequence[str] = ()) -> Engine:
    """Create an engine with the link that `config` names, without starting it. The model's
    directory is tried first (see `try_directories`). Raises ModelError.
    """
    if config.at:
        return _open_shared(config, readers)
    check_gpus(config)
    check_tried(config.directories, readers)

    def make_link(deliver: Deliver) -> Link:
        if has_own_process(config):  # the process has its own grammars
            return _to_processes(config, deliver)

        def open_backend() -> Backend:
            return _open(make_backend, config, engine.grammars, deliver)

        return EngineThread(config, open_backend, deliver)

    engine = Engine(config, make_link)
    return engine


def own_config(config: ModelConfig) -> ModelConfig:
    """The configuration for the shared engine itself, from the configuration of its servers."""
    return replace(config, link="auto", at=()) if config.at else config


def open_host(config: ModelConfig, at: str) -> Host:
    """Create a shared engine that will listen at `at`, without starting it. It runs in this process
    or, if there are several replicas, in a process for each replica. Raises ModelError.
    """
    check_gpus(config)
    key = _key_of(config, [at])
    check_tried(config.directories)
    fingerprint = ModelDir.read(config.path).fingerprint

    def make_link(deliver: Deliver) -> Link:
        if config.replicas > 1:
            return _to_processes(config, deliver)
        return EngineThread(config, lambda: _open(make_backend, config, None, deliver), deliver)

    return Host(config, make_link, at, key, fingerprint)


def look_at(config: ModelConfig, at: str) -> int:
    """Returns the process id of the shared engine at `at`, if it would accept a server. Raises
    EngineError, OSError, EOFError.
    """
    fingerprint = ModelDir.read(config.path).fingerprint
    return look(at, _key_of(config, [at])(), fingerprint).pid


def ask_engine(at: str, engine_key_file: str | None) -> Welcome:
    """Returns the state of the shared engine at `at`, whichever model it runs. Raises EngineError,
    OSError, EOFError.
    """
    key = KeyFile(engine_key_file)
    check(at)
    _check(bool(key()), at)
    return look(at, key())


def _open_shared(config: ModelConfig, readers: Sequence[str]) -> Engine:
    key = _key_of(config, config.at)
    check_tried([config.path], readers)
    fingerprint = ModelDir.read(config.path).fingerprint

    def make_shared(at: str) -> MakeLink:
        return partial(SocketLink, config, at, key, fingerprint)

    def follow(deliver: Deliver) -> Link:
        link = ReplicaLink(config, (), deliver)
        members = Members(config.at, partial(_check, bool(key())))
        return FollowingLink(config.name, members, make_shared, link, deliver)

    if config.has_source:
        return Engine(config, follow)
    makers = [((), make_shared(at)) for at in config.at]
    return Engine(config, partial(ReplicaLink, config, makers))


def engines_of(config: ModelConfig) -> list[str]:
    """Returns the addresses of the shared engines that exist now. Raises ModelError, and OSError or
    ValueError if a source can't be read.
    """
    return Members(config.at, partial(_check, bool(_key_of(config, config.at)()))).read()


def _key_of(config: ModelConfig, at: Sequence[str]) -> KeyFile:
    """Raises ModelError, for example for an invalid address or source."""
    key = KeyFile(config.engine_key_file)
    for one in at:
        _check(bool(key()), one)
    return key


def _check(has_key: bool, at: str) -> None:
    """Raises ModelError."""
    check_source(at) if is_source(at) else check(at)
    if is_tcp(at) and not has_key:
        raise ModelError(f"at: {at} needs a key: set engine_key_file", "engine_key_file")


def _to_processes(config: ModelConfig, deliver: Deliver) -> ReplicaLink:
    parts = [replace(config, gpus=part, replicas=1) for part in shares(config)]
    makers = [(one.gpus, partial(_to_process, one)) for one in parts]
    return ReplicaLink(config, makers, deliver)


def _to_process(config: ModelConfig, deliver: Deliver) -> PipeLink:
    return PipeLink(config, partial(_open, make_backend, config, None), deliver)


def has_own_process(config: ModelConfig) -> bool:
    """Whether the engine runs in its own process. By default it does on a GPU, where request
    threads in the same process would cost up to half its speed. On the CPU, a separate process has
    no advantage.
    """
    if config.replicas > 1:
        return True
    if config.link != "auto":
        return config.link == "process"
    return config.device == "cuda" or (config.device == "auto" and has_gpu())


def _open(
    make: Callable[..., Backend], config: ModelConfig, grammars: Grammars | None, deliver: Deliver
) -> Backend:
    """Called on the engine thread, possibly in another process."""

    def tell_progress(share: float) -> None:
        deliver([LoadProgress(share)])

    return make(config, grammars, tell_progress)
