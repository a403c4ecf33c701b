"""What a name of the table stands for. The table's lock guards all of it."""

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
    """A model as it is configured. Times in seconds."""

    config: ModelConfig
    # When it is loaded: with the server, by the first request that names it, or by an operator.
    load: Policy = "start"
    idle_timeout: float = 0.0  # without a job, after which it is unloaded; 0: never
    drain: float = 60.0  # that its jobs may go on when it is unloaded or another takes its place
    about: object = None  # the application's own: nothing here looks at it


class Instance:
    """An engine of a name, and who holds it."""

    __slots__ = ("engine", "needed", "num_leases", "served", "since", "used")

    def __init__(self, served: Served, engine: Engine) -> None:
        self.served = served
        self.engine = engine
        self.num_leases = 0  # requests that may still submit to it
        self.used = 0.0  # when last, by the table's clock
        self.since = 0.0  # when it was loaded
        self.needed: Mapping[Place, int] = {}  # bytes by place, as estimated for its load

    @property
    def is_loaded(self) -> bool:
        """Whether it holds memory and can take jobs, whatever trouble it may have."""
        return self.engine.standing.is_ready

    @property
    def is_idle(self) -> bool:
        return not self.num_leases and not self.engine.num_jobs


class Entry:
    """A name, and the engine that it points to."""

    __slots__ = (
        *("error", "instance", "is_lost", "load", "name", "num_failures", "num_waiting"),
        *("past", "retiring", "retry_at", "was_lost", "was_unloaded", "yields_to"),
    )

    def __init__(self, name: str, instance: Instance) -> None:
        self.name = name
        self.instance = instance
        self.load: Load | None = None  # that is under way
        self.retiring: list[Instance] = []  # no name points to them, but they may have jobs
        self.error: EngineError | None = None  # of the last load, or by which the engine was lost
        self.num_failures = 0  # one after the other
        self.retry_at = 0.0  # by the monotonic clock; none begins before
        self.num_waiting = 0  # requests, for a load
        self.yields_to: Instance | None = None  # that needs its memory: its own requests wait
        self.past = Past()  # of engines before this one
        self.was_unloaded = False  # on purpose: it doesn't come back by itself
        self.was_lost = False  # while it was loaded: it comes back by itself
        self.is_lost = False  # for good: only another process can serve it

    @property
    def is_there(self) -> bool:
        """Whether its engine takes requests, or tells by itself why not."""
        engine = self.instance.engine
        if self.load is not None and self.load.is_waited_for:
            return False
        return self.is_lost or (engine.is_started and not engine.standing.is_stopped)

    @property
    def comes_back(self) -> bool:
        """Whether it is loaded again by itself."""
        is_wanted = self.was_lost or self.instance.served.load == "start"
        return self.state == "failed" and is_wanted and not self.was_unloaded

    @property
    def state(self) -> ModelState:
        engine = self.instance.engine
        if self.is_lost or (engine.is_started and not engine.standing.is_stopped):
            return engine.state
        if self.load is not None and self.load.is_waited_for:
            return "loading"
        if self.error is not None:
            return "failed"
        if engine.is_started or self.was_unloaded or self.instance.served.load != "start":
            return "unloaded"
        return "loading"

    def check_ours(self) -> None:
        """Raises NotOurs."""
        if at := self.instance.served.config.at:
            raise NotOurs(
                f"model {self.name} is in engines that servers share, at {', '.join(at)}: end"
                " those, and start them again"
            )


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """How a name of the table stands."""

    name: str
    aliases: tuple[str, ...]
    state: ModelState
    progress: float | None  # of a load that is under way, from 0 to 1
    error: EngineError | None  # why it has failed
    num_jobs: int  # with those of engines that are about to go
    num_leases: int
    num_waiting: int
    load: Policy
    needed: Mapping[Place, int] = field(default_factory=dict)


class Lease:
    """An engine that isn't closed for another's sake until this is released."""

    __slots__ = ("_release", "engine")

    def __init__(self, engine: Engine, release: Callable[[], None]) -> None:
        self.engine = engine
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Harmless when called again."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Engine:
        return self.engine

    def __exit__(self, *_: object) -> None:
        self.release()
