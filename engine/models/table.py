"""The table of models, which maps each name to an engine."""

import copy
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from switchyard.engine.errors import ModelError
from switchyard.engine.memory import residency
from switchyard.engine.models.closing import close_all
from switchyard.engine.models.entry import Entry, Instance, Lease, ModelStatus, Served
from switchyard.engine.models.lessor import Lessor
from switchyard.engine.models.lifecycle import Lifecycle
from switchyard.engine.models.load import Load, Way
from switchyard.engine.models.names import Names
from switchyard.engine.models.opening import open_engine
from switchyard.engine.models.room import Look, Room
from switchyard.engine.models.unread import Unread, open_if_readable
from switchyard.engine.schedule.alarms import ALARMS, Alarm

TICK = 1.0  # seconds between checks for idle and lost models


class Models:
    """All models on this server, by name. Can be used on any thread."""

    is_final = True  # if its only model or a first load fails, the process ends without a retry

    def __init__(
        self,
        models: Iterable[Engine | Served],
        aliases: Mapping[str, str] | None = None,
        *,
        default: str | None = None,
        open: Callable[[ModelConfig], Engine] = open_engine,
        max_loaded: int = 0,
        load_wait: float = 120.0,
        look: Look = residency,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`aliases`: maps aliases to model names; an alias may end in `*`, which matches any
        ending. `default`: the model for requests that don't name one; None means the first model.
        `max_loaded`: the maximum number of engines, or 0 if only memory limits the number.
        `load_wait`: seconds that a request waits for its model. Raises ModelError for an alias of
        an unknown model, and for a model with load = "start" whose files can't be read. If another
        model's files can't be read, only that model fails, as its `status` shows.
        """
        self._changed = threading.Condition()  # guards entries, aliases, the attributes below
        self._open = open
        self._entries: dict[str, Entry] = {}
        self._stopped: queue.SimpleQueue[Engine] = queue.SimpleQueue()
        self._process: int | None = None  # the process that has called `start`
        self._alarm: Alarm | None = None
        room = Room(self._entries, self._changed, max_loaded, look)
        self._life = Lifecycle(self._entries, self._changed, self._opened, room, load_wait, clock)
        for model in models:
            self.add(model, isinstance(model, Served) and model.load != "start")
        self._names = Names(self._entries, self._changed, aliases or {}, default)
        self._lessor = Lessor(self._changed, self._life, load_wait)

    @property
    def names(self) -> list[str]:
        """The names, without the aliases."""
        return list(self._entries)

    @property
    def engines(self) -> list[Engine]:
        """The engines for all names, and replaced engines that are finishing their jobs."""
        with self._changed:
            entries = list(self._entries.values())
            return [one.engine for entry in entries for one in (entry.instance, *entry.retiring)]

    @property
    def num_jobs(self) -> int:
        """The number of active and pending jobs in all engines."""
        return sum(engine.num_jobs for engine in self.engines)

    @property
    def is_over(self) -> bool:
        """Whether no engine will ever accept a job again."""
        return self._life.is_over or all(entry.is_lost for entry in list(self._entries.values()))

    @property
    def is_ready(self) -> bool:
        """Whether all models with load = "start" are ready."""
        entries = list(self._entries.values())
        return all(e.state == "ready" for e in entries if e.instance.served.load == "start")

    def get(self, name: str | None = None) -> Engine:
        """Returns the engine for a name or an alias, or the default engine, for reading its state.
        The engine might not be loaded; to submit jobs, take a `lease`. Raises ModelNotFound.
        """
        return self._names.find(name).instance.engine

    def served(self, name: str | None = None) -> Served:
        """Returns the model's current configuration. Raises ModelNotFound."""
        return self._names.find(name).instance.served

    def status(self, name: str | None = None) -> ModelStatus:
        """Raises ModelNotFound."""
        entry = self._names.find(name)
        with self._changed:
            aliases = self._names.aliases_of(entry)
            return entry.status(aliases, self._process is not None, self._life.clock())

    def lease(self, name: str | None = None, check: Callable[[], None] = lambda: None) -> Lease:
        """Returns a lease on the engine, for submitting jobs. If requests may load the model, loads
        it and waits. `check` is called regularly, and ends the wait by raising an error. Raises
        ModelNotFound, Refused.
        """
        return self._lessor.lease(self._names.find(name), check)

    def load(self, name: str) -> Load | None:
        """Begin to load a model in the table. Returns None if it is already loaded. Raises
        ModelNotFound, LoadUnderWay.
        """
        entry = self._names.find(name)
        with self._changed:
            return None if entry.is_there and not entry.load else self._life.load(entry)

    def add(self, model: Engine | Served, may_fail: bool = False) -> None:
        """Add a model with a name that is not in the table. `may_fail`: whether to add a model that
        can't be read, with the state `failed`. Raises ModelError.
        """
        if isinstance(model, Engine):
            served, engine = Served(model.config), model
            engine.on_stopped(self._note_stopped)
        else:
            open = partial(open_if_readable, self._opened) if may_fail else self._opened
            served, engine = model, open(model)
        name = served.config.name
        with self._changed:
            if name in self._entries:
                raise ModelError(f"there are two models named {name!r}", "models")
            entry = self._entries[name] = Entry(name, Instance(served, engine))
            entry.error = engine.reason if isinstance(engine, Unread) else None

    def swap(self, served: Served, way: Way | None = None, is_default: bool = False) -> Load:
        """Replace the model that has the configuration's name. A model with a new name is added and
        loaded. `way`: load "beside" the old engine, or "drain" the old engine first; None means
        "beside" if memory allows. `is_default`: make it the default model once it is loaded. Raises
        ModelError.
        """
        name = served.config.name
        if name not in self._entries:
            self.add(served)
        with self._changed:
            entry = self._entries[name]
            entry.check_ours()
            is_new = entry.instance.served is served
            load = self._life.load(entry) if is_new else self._life.swap(entry, served, way)
            if is_default:
                load.then = lambda: self.set_default(name)
            return load

    def unload(self, name: str, drain: float | None = None) -> Load:
        """Begin to unload the model. Its engine ends after its last job or after `drain` seconds,
        whichever comes first.
        None means the model's own setting. Raises ModelNotFound, LoadUnderWay, NotOurs.
        """
        entry = self._names.find(name)
        with self._changed:
            entry.check_ours()
            return self._life.unload(entry, entry.instance.served.drain if drain is None else drain)

    def keep(self, name: str, idle_timeout: float) -> None:
        """Use this idle timeout, in seconds, from now until the model is swapped. With 0, the model
        is never unloaded. Raises ModelNotFound.
        """
        entry = self._names.find(name)
        with self._changed:
            one = entry.instance
            one.served = replace(one.served, idle_timeout=idle_timeout)
            one.used = self._life.clock()

    def point(self, alias: str, name: str) -> str | None:
        """Point an alias to a model. Returns its former target. Raises ModelNotFound."""
        return self._names.point(alias, name)

    def set_default(self, name: str) -> None:
        """Raises ModelNotFound."""
        self._names.default = self._names.find(name).name

    def only(self, names: Collection[str]) -> "Models":
        """Returns a view that contains only some of the models, with the same engines."""
        some = copy.copy(self)
        some._entries = {name: entry for name, entry in self._entries.items() if name in names}
        some._names = self._names.only(some._entries)
        return some

    def start(self) -> None:
        """Begin to load the models with load = "start". Returns at once."""
        self._process = os.getpid()
        self._lessor.is_open = True
        with self._changed:
            first = [e for e in self._entries.values() if e.instance.served.load == "start"]
            if len(self._entries) == 1 and first:
                first.pop().instance.engine.start()  # a single model needs no turn, and no thread
            for entry in first:
                self._life.load(entry, is_waited_for=False)
        self._alarm = ALARMS.set(TICK, self._tick)

    def wait_until_loaded(self, timeout: float | None = None) -> bool:
        """Returns whether the models with load = "start" are ready within `timeout` seconds.
        Returns False at once if one has failed. Raises RuntimeError if `start` was not called in
        this process.
        """
        if self._process != os.getpid():
            raise RuntimeError("these models were not started in this process: call start")
        deadline = None if timeout is None else time.monotonic() + timeout
        for entry in list(self._entries.values()):
            left = None if deadline is None else deadline - time.monotonic()
            one = entry.instance
            if one.served.load == "start" and not one.engine.wait_until_loaded(left):
                return False
            if (load := entry.load) is not None and load.engine is one.engine:
                load.wait()  # all but done
        return True

    def wait_until_stopped(self, timeout: float | None = None) -> Engine | None:
        """Returns the next engine that has stopped for good, or None if no engine stops within
        `timeout` seconds. An engine with an `error` has stopped by itself, and only another process
        can serve its model.
        """
        try:
            return self._stopped.get(timeout=timeout)
        except queue.Empty:
            return None

    def drain(self) -> None:
        """Make all engines refuse new jobs. Returns at once."""
        self._end_life()
        for engine in self.engines:
            engine.drain()

    def close(self, drain: float = 0.0, timeout: float | None = None) -> bool:
        """Close all engines at the same time, as `Engine.close` does. Returns whether all were
        closed in time. In a fork of the process that called `start`, returns False at once. Such a
        fork has copies of jobs and locks, but no thread that could end the jobs.
        """
        if self._process not in (None, os.getpid()):
            return False
        self._end_life()
        loads = [entry.load for entry in list(self._entries.values())]
        loading = [load.engine for load in loads if load is not None and load.engine]
        return close_all([*dict.fromkeys([*self.engines, *loading])], drain, timeout)

    # Helpers

    def _opened(self, served: Served) -> Engine:
        engine = self._open(served.config)
        engine.about = served.about
        engine.on_stopped(self._note_stopped)
        return engine

    def _note_stopped(self, engine: Engine) -> None:
        """Called on the link's thread."""
        with self._changed:
            entry = next((e for e in self._entries.values() if e.instance.engine is engine), None)
            if entry is None:
                return
            entry.instance.is_noted = True
            if (load := entry.load) and load.is_waited_for and not self._life.is_over:
                return  # a command or a load has ended it
            is_load = load is not None and load.is_load
            is_end = self.is_final and (is_load or len(self._entries) == 1)
            entry.is_lost = is_end or self._life.is_over
            if not entry.is_lost:
                if not is_load:  # a load notes that itself
                    self._life.note_loss(entry)
                return
            self._changed.notify_all()
        self._stopped.put(engine)

    def _end_life(self) -> None:
        """Stops loads, and wakes waiting requests."""
        with self._changed:
            self._life.is_over = True
            self._lessor.is_open = False
            alarm = self._alarm
            self._changed.notify_all()
        if alarm is not None:
            alarm.cancel()  # outside the lock, which the alarm's call takes

    def _tick(self) -> None:
        """Called on the alarms' thread."""
        with self._changed:
            if self._life.is_over:
                return
            self._life.tick()
            self._alarm = ALARMS.set(TICK, self._tick)
