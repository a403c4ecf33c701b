"""The entries in the table of models. The table's lock guards them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from switchyard.engine.errors import EngineError, NotOurs
from switchyard.engine.memory.residency import Place
from switchyard.engine.models.load import Load
from switchyard.engine.schedule.admission import State
from switchyard.engine.standing import Past

Policy = Literal["start", "demand", "manual"]
ModelState = State | Literal["unloaded", "failed"]


@dataclass(frozen=True, slots=True)
class Served:
    """The configuration of a model in the table. Times are in seconds."""

    config: ModelConfig
    # When it is loaded: with the server, by the first request that names it, or by an operator.
    load: Policy = "start"
    idle_timeout: float = 0.0  # time without a job until an unload; 0: never
    drain: float = 60.0  # time for running jobs before an unload or a swap
    about: object = None  # the application's data


class Instance:
    """An engine for a name, and its leases."""

    __slots__ = ("engine", "is_noted", "needed", "num_leases", "served", "since", "used")

    def __init__(self, served: Served, engine: Engine) -> None:
        self.served = served
        self.engine = engine
        self.num_leases = 0  # leases: requests that may submit jobs
        self.used = 0.0  # time of the last use, on the table's clock
        self.since = math.inf  # time of the load, once it has ended
        self.needed: Mapping[Place, int] = {}  # estimated bytes by place
        self.is_noted = False  # the table knows that the engine has stopped

    @property
    def is_loaded(self) -> bool:
        """Whether the engine holds memory and can accept jobs, even if it is recovering or
        hanging.
        """
        return self.engine.standing.is_ready

    @property
    def is_idle(self) -> bool:
        return not self.num_leases and not self.engine.num_jobs


class Entry:
    """A name in the table, and the engine that it points to."""

    __slots__ = (
        *("error", "instance", "is_lost", "load", "name", "num_failures", "num_waiting"),
        *("past", "retiring", "retry_at", "was_lost", "was_unloaded", "yields_to"),
    )

    def __init__(self, name: str, instance: Instance) -> None:
        self.name = name
        self.instance = instance
        self.load: Load | None = None  # the change in progress
        self.retiring: list[Instance] = []  # replaced engines that may still have jobs
        self.error: EngineError | None = None  # of the last load, or of the engine's loss
        self.num_failures = 0  # failed loads in a row
        self.retry_at = 0.0  # earliest time of the next load, on the monotonic clock
        self.num_waiting = 0  # requests that wait for a load
        self.yields_to: Instance | None = None  # needs this memory, so new requests wait
        self.past = Past()  # the counts of earlier engines
        self.was_unloaded = False  # by command: not loaded again automatically
        self.was_lost = False  # after its load: loaded again automatically
        self.is_lost = False  # for good: only another process can load it

    @property
    def is_there(self) -> bool:
        """Whether the engine itself handles requests, either accepting them or refusing them with a
        reason.
        """
        engine = self.instance.engine
        if self.load is not None and self.load.is_waited_for:
            return False
        return self.is_lost or (engine.is_started and not engine.standing.is_stopped)

    @property
    def is_sure_to_load(self) -> bool:
        """Whether a change in progress will load the model without having to wait for room."""
        load = self.load
        if load is None or load.is_unload:
            return False
        return not (load.is_load and load.is_waited_for)

    @property
    def is_ending(self) -> bool:
        """Whether the engine has stopped, but the table has not noted that yet."""
        engine = self.instance.engine
        return engine.is_started and engine.standing.is_stopped and not self.instance.is_noted

    @property
    def comes_back(self) -> bool:
        """Whether the model will be loaded again automatically."""
        is_wanted = self.was_lost or self.instance.served.load == "start"
        return self.state == "failed" and is_wanted and not self.was_unloaded

    @property
    def state(self) -> ModelState:
        engine = self.instance.engine
        if self.load is not None and self.load.is_cancelled:
            return "loading"  # until the backend's load has ended
        if self.is_lost or (engine.is_started and not engine.standing.is_stopped):
            return engine.state
        if self.load is not None and self.load.is_waited_for:
            return "loading"
        if self.error is not None:
            return "failed"
        if engine.is_started or self.was_unloaded or self.instance.served.load != "start":
            return "unloaded"
        return "loading"

    def status(self, aliases: tuple[str, ...], is_started: bool, now: float) -> "ModelStatus":
        """`is_started`: whether the table has started its models. `now`: a time on the table's
        clock.
        """
        one, load = self.instance, self.load
        state = self.state if is_started else "unloaded"
        progress = one.engine.progress if load is None else load.progress
        timeout, idle = one.served.idle_timeout, now - one.used if one.is_idle else 0.0
        return ModelStatus(
            self.name,
            aliases,
            state,
            progress if state == "loading" else None,
            one.engine.error or self.error,
            one.engine.num_jobs + sum(old.engine.num_jobs for old in self.retiring),
            one.num_leases,
            self.num_waiting,
            one.served.load,
            one.needed,
            max(timeout - idle, 0.0) if timeout and one.is_loaded else None,
        )

    def check_ours(self) -> None:
        """Raises NotOurs for a shared engine."""
        if at := self.instance.served.config.at:
            raise NotOurs(
                f"model {self.name} runs in shared engines at {', '.join(at)}: restart those"
                " engines"
            )


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """The state of one model in the table."""

    name: str
    aliases: tuple[str, ...]
    state: ModelState
    progress: float | None  # of the current load, from 0 to 1
    error: EngineError | None  # of the last load, or of the engine's loss
    num_jobs: int  # including those of replaced engines
    num_leases: int
    num_waiting: int
    load: Policy
    needed: Mapping[Place, int] = field(default_factory=dict)
    idle_left: float | None = None  # seconds until an unload, if no job arrives; None: never


class Lease:
    """A hold on an engine. The engine can't be evicted until `release` is called."""

    __slots__ = ("_release", "engine")

    def __init__(self, engine: Engine, release: Callable[[], None]) -> None:
        self.engine = engine
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Idempotent."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Engine:
        return self.engine

    def __exit__(self, *_: object) -> None:
        self.release()
