"""Loads, unloads and swaps engines. Each change has its own thread."""

import logging
import threading
import time
from collections.abc import Callable, Mapping

from switchyard.engine.engine import Engine
from switchyard.engine.errors import (
    Closed,
    EngineError,
    Loading,
    LoadUnderWay,
    ModelError,
    NoRoom,
    without_frames,
)
from switchyard.engine.models.entry import Entry, Instance, Served
from switchyard.engine.models.instances import Instances
from switchyard.engine.models.load import Load, Turns, Way
from switchyard.engine.models.room import RELEASE, Room
from switchyard.engine.models.unread import Unread

logger = logging.getLogger(__name__)

LOOK = 0.1  # seconds between attempts while other models are busy
YIELD = 0.25  # share of the patience after which the models in the way accept no requests
RETRY = 5.0  # seconds until a lost engine is loaded again; doubled each time
MAX_RETRY = 300.0


class Lifecycle:
    """The lock `changed` guards the entries. It is not held while an engine is opened, loaded or
    closed.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        changed: threading.Condition,
        open: Callable[[Served], Engine],
        room: Room,
        patience: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`patience`: how many seconds a load waits for memory that other models use."""
        self._entries = entries
        self._changed = changed
        self._instances = Instances(changed, open)
        self._room = room
        self._patience = patience
        self.clock = clock
        self._turns = Turns()
        self.is_over = False  # True: no more loads

    # Under the lock: begin a change, return at once

    def load(self, entry: Entry, is_waited_for: bool = True) -> Load:
        """Raises LoadUnderWay."""
        entry.was_unloaded = False
        return self._begin(entry, self._load, is_waited_for, is_load=True)

    def unload(self, entry: Entry, drain: float) -> Load:
        """Unload the model, or cancel its load in progress. Raises LoadUnderWay during a swap."""
        load = entry.load
        if load is None or not load.is_load:
            load = self._begin(entry, lambda e, _: self._unload(e, drain), is_unload=True)
        else:
            load.is_cancelled = True
            if load.engine is not None:
                self._close_soon(load.engine)
        entry.was_unloaded = True
        return load

    def swap(self, entry: Entry, served: Served, way: Way | None) -> Load:
        """`way`: None means "beside" if memory allows, otherwise "drain". Raises LoadUnderWay."""
        entry.was_unloaded = False

        def work(entry: Entry, load: Load) -> None:
            self._swap(entry, load, served, way)

        is_load = not entry.is_there
        return self._begin(entry, work, is_waited_for=is_load, is_load=is_load)

    def tick(self) -> None:
        """Called regularly to unload models after their idle timeout and to reload lost models."""
        now = self.clock()
        for entry in self._entries.values():
            instance = entry.instance
            if not instance.is_idle:
                instance.used = now
            if entry.load is not None or entry.is_lost:
                continue
            timeout = instance.served.idle_timeout
            if timeout and instance.is_loaded and now - instance.used >= timeout:
                logger.info("model %s was idle for %.0f s", entry.name, timeout)
                self._begin(entry, lambda e, _: self._unload(e, 0.0), is_unload=True)
            elif entry.comes_back and now >= entry.retry_at:
                self.load(entry)

    def wait_of(self, entry: Entry) -> float:
        """The seconds until a failed model may be loaded again."""
        return entry.retry_at - self.clock() if entry.error is not None else 0.0

    def note_loss(self, entry: Entry) -> None:
        """Called when the engine has stopped by itself. Idempotent."""
        if not entry.was_lost:
            entry.was_lost = True
            self._fail(entry, entry.instance.engine.error)
            self._changed.notify_all()

    # Threads of changes

    def _begin(
        self,
        entry: Entry,
        work: Callable[[Entry, Load], None],
        is_waited_for: bool = True,
        is_load: bool = False,
        is_unload: bool = False,
    ) -> Load:
        """Begin a change. A load or a swap waits until an unload has ended."""
        before = entry.load
        if before is not None and (is_unload or not before.is_unload):
            raise LoadUnderWay(f"model {entry.name} is already being loaded, unloaded or swapped")
        load = entry.load = Load(entry.name, is_waited_for, is_load, is_unload)
        threading.Thread(
            target=self._run,
            args=(entry, load, work, before),
            name=f"load-{entry.name}",
            daemon=True,
        ).start()
        return load

    def _run(
        self, entry: Entry, load: Load, work: Callable[[Entry, Load], None], before: Load | None
    ) -> None:
        error: EngineError | None = None
        try:
            if before is not None:
                before.wait_for_end()
            work(entry, load)
        except EngineError as reason:
            error = without_frames(reason)
        except BaseException as reason:
            logger.exception("a change of model %s failed", entry.name)
            error = ModelError(f"{type(reason).__name__}: {reason}")
        with self._changed:
            # An engine logs its own error.
            is_known = self.is_over or (load.engine is not None and error is load.engine.error)
            if load.is_cancelled:
                logger.info("model %s is unloaded", entry.name)
            elif error is not None and not is_known:
                logger.error("model %s: %s", entry.name, error)
            self._finish(entry, load, error)

    def _finish(self, entry: Entry, load: Load, error: EngineError | None = None) -> None:
        """The caller must hold the lock. Idempotent."""
        if not load.is_done:
            if entry.load is load:
                entry.load = None
            if error is None:
                entry.error, entry.num_failures, entry.was_lost = None, 0, False
                engine = entry.instance.engine
                if engine is load.engine and engine.standing.is_stopped:
                    self.note_loss(entry)  # lost since the end of the load
                load.then()
            elif not (entry.is_there or load.is_cancelled):
                self._fail(entry, error)
            load.end(error)
            self._changed.notify_all()

    def _fail(self, entry: Entry, error: EngineError | None) -> None:
        """Note a failure, and when the next load may begin. The caller must hold the lock."""
        entry.error = error
        wait = min(RETRY * 2**entry.num_failures, MAX_RETRY)
        entry.retry_at = self.clock() + (0.0 if isinstance(error, Loading) else wait)
        entry.num_failures += 1

    def _load(self, entry: Entry, load: Load) -> None:
        instance = entry.instance
        if instance.engine.is_started or isinstance(instance.engine, Unread):
            instance = self._instances.renew(entry)
        self._load_with_room(entry, instance, load)

    def _load_with_room(self, entry: Entry, instance: Instance, load: Load) -> None:
        """Load as soon as there is memory, which other models may still be using. Raises
        EngineError.
        """
        begin = self.clock()
        try:
            while True:
                waited = self.clock() - begin
                is_pressing = waited >= YIELD * self._patience
                with self._turns.take(instance.served.config.gpus):
                    if not load.is_waited_for or self._room.make(instance, is_pressing) != "busy":
                        self._start_once_more(entry, instance, load)
                        return
                if waited >= self._patience or load.is_cancelled:
                    waits_for = "memory, or a place within max_loaded, that busy models use"
                    raise Loading(f"model {entry.name} waits for {waits_for}", RETRY)
                time.sleep(LOOK)
        finally:
            self._room.let_go_on(instance)

    def _start_once_more(self, entry: Entry, instance: Instance, load: Load) -> None:
        """Load the model. If there is no room after all, evict one more model and try once more."""
        try:
            self._start(instance, load)
        except NoRoom:
            if not self._room.evict_one(instance):
                raise
            self._start(self._instances.renew(entry), load)

    def _start(self, instance: Instance, load: Load) -> None:
        with self._changed:
            engine = load.engine = instance.engine
            if load.is_cancelled or self.is_over:
                raise Closed(f"model {engine.config.name} was unloaded before its load had ended")
            engine.start()
        if not engine.wait_until_loaded() or load.is_cancelled:
            error = engine.error or Closed(
                f"model {engine.config.name} was unloaded in the meantime"
            )
            engine.close(timeout=RELEASE)
            raise error
        with self._changed:
            instance.since = instance.used = self.clock()

    def _unload(self, entry: Entry, drain: float) -> None:
        instance = entry.instance
        if instance.engine.is_started:  # else it would be closed, and no load could start it
            with self._turns.take(instance.served.config.gpus):
                self._room.retire(instance, drain)
        logger.info("model %s is unloaded", entry.name)

    def _swap(self, entry: Entry, load: Load, served: Served, way: Way | None) -> None:
        old, new = entry.instance, self._instances.make(entry, served)
        if not old.is_loaded:
            self._instances.point(entry, new)
            try:
                self._load_with_room(entry, new, load)
            except BaseException:  # a later load uses the former configuration
                self._instances.put_back(entry, old.served)
                raise
            return
        theirs, own = old.served.config.gpus, served.config.gpus
        with self._turns.take((*theirs, *own) if theirs and own else ()):
            load.way = way or ("beside" if self._room.make_beside(new) else "drain")
            if load.way == "beside":
                try:
                    self._start(new, load)
                except NoRoom as error:
                    if way is not None:
                        raise
                    logger.info(
                        "model %s can't be loaded beside the old one: %s", entry.name, error
                    )
                    load.way, new = "drain", self._instances.make(entry, served)
            if load.way == "drain":
                self._room.check_after(old, new)
                self._swap_in_turn(entry, load, old, new)
                return
            self._instances.point(entry, new, old)
            with self._changed:
                self._finish(entry, load)
            self._room.retire(old, old.served.drain)
            with self._changed:
                entry.retiring.remove(old)

    def _swap_in_turn(self, entry: Entry, load: Load, old: Instance, new: Instance) -> None:
        """End the old engine, then load the new engine, while requests wait. If that fails, load
        the old configuration again.
        """
        with self._changed:
            load.is_waited_for = True
        self._room.retire(old, old.served.drain)
        self._instances.point(entry, new)
        try:
            self._room.make_beside(new)
            self._start(new, load)
        except EngineError as error:
            again = self._instances.put_back(entry, old.served)
            try:
                self._start(again, load)
            except EngineError as reason:
                message = f"{error}; and the previous model could not be loaded again: {reason}"
                raise ModelError(message) from reason
            raise type(error)(f"{error}; the previous model has been loaded again") from error

    def _close_soon(self, engine: Engine) -> None:
        name = f"close-{engine.config.name}"
        threading.Thread(target=engine.close, name=name, daemon=True).start()
