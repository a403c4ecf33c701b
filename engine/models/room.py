"""Room for a model: which others go for it, and how they go."""

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, Protocol

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import NoRoom
from switchyard.engine.memory import residency
from switchyard.engine.memory.estimate import GIB
from switchyard.engine.memory.residency import Place, Resident
from switchyard.engine.models.entry import Entry, Instance
from switchyard.engine.models.load import Load

logger = logging.getLogger(__name__)

RELEASE = 30.0  # seconds that an engine may take to end once its jobs have


class Look(Protocol):
    """What tells of memory: `engine.memory.residency`, or a test's own."""

    def needed(self, config: ModelConfig) -> Mapping[Place, int]: ...
    def free(self, places: Collection[Place]) -> Mapping[Place, int]: ...


class Room:
    """`changed` guards the entries, and is not held while engines end. Called by one change of the
    same GPUs at a time.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        changed: threading.Condition,
        max_loaded: int = 0,
        look: Look = residency,
    ) -> None:
        """`max_loaded`: engines at once; 0: as memory allows."""
        self._entries = entries
        self._changed = changed
        self._max_loaded = max_loaded
        self._look = look

    def make(
        self, instance: Instance, is_pressing: bool = False
    ) -> Literal["there", "busy", "none"]:
        """Unload what is idle, the least recently used first, until there is room. "busy": there
        will be once others have ended their jobs; if `is_pressing` those that were loaded first get
        no more, until `let_go_on`. "none": the estimate has none, even with all of
        them gone, as they are then: the loader has the last word. Raises NoRoom by number.
        """
        needed = instance.needed = self._look.needed(instance.served.config)
        idle, busy, num_loaded = self._others(instance)
        excess = max(num_loaded + 1 - self._max_loaded, 0) if self._max_loaded else 0
        if excess > len(idle) + len(busy):
            raise NoRoom(f"{num_loaded} models stay loaded, of max_loaded = {self._max_loaded}")
        free = self._look.free(needed.keys())
        names = residency.victims(needed, free, idle, excess)
        if names is None:
            away = residency.victims(needed, free, [*idle, *busy], excess)
            if away is not None:
                if is_pressing:
                    self._hold(away, instance)
                return "busy"
        is_enough = names is not None
        if not self._evict(names if names is not None else [one.name for one in idle]):
            return "busy"
        return "there" if is_enough else "none"

    def let_go_on(self, instance: Instance) -> None:
        """Those that were to go for it, as far as they haven't."""
        with self._changed:
            for entry in self._entries.values():
                if entry.yields_to is instance:
                    entry.yields_to = None
            self._changed.notify_all()

    def make_beside(self, instance: Instance) -> bool:
        """Of what is idle, and none where that isn't enough: whether it is."""
        needed = instance.needed = self._look.needed(instance.served.config)
        idle, _, _ = self._others(instance)
        names = residency.victims(needed, self._look.free(needed.keys()), idle)
        return names is not None and self._evict(names)

    def check_after(self, old: Instance, new: Instance) -> None:
        """Raises NoRoom where the estimate has none once `old` is gone, and all that is idle."""
        idle, _, _ = self._others(new)
        taken = old.needed or self._look.needed(old.served.config)
        new.needed = new.needed or self._look.needed(new.served.config)
        free = self._look.free(new.needed.keys())
        gone = [*idle, Resident(old.served.config.name, taken, old.used)]
        if residency.victims(new.needed, free, gone) is None:
            sums = []
            for place, size in new.needed.items():
                there = free.get(place, 0) + sum(one.taken.get(place, 0) for one in gone)
                of = "memory" if place == "host" else f"GPU {place}"
                sums.append(f"{size / GIB:.1f} GiB of {of}, where {there / GIB:.1f} are")
            told = ", ".join(sums)
            raise NoRoom(f"no room for the model: it needs {told} once others are gone")

    def evict_one(self, but: Instance) -> bool:
        """Whether there was one."""
        idle, _, _ = self._others(but)
        return bool(idle) and self._evict([min(idle, key=lambda one: one.used).name])

    def retire(self, instance: Instance, drain: float) -> None:
        """End an engine behind its last job, or after `drain` seconds."""
        begin = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: not instance.num_leases, drain)
        left = max(drain - (time.monotonic() - begin), 0.0)
        instance.engine.close(left, RELEASE)

    def _others(self, instance: Instance) -> tuple[list[Resident], list[Resident], int]:
        """Those that may go, idle or at work; and how many are loaded in all."""
        idle: list[Resident] = []
        busy: list[Resident] = []
        with self._changed:
            loaded = [
                entry
                for entry in self._entries.values()
                if entry.instance.is_loaded and entry.instance is not instance
            ]
            for entry in loaded:
                one = entry.instance
                if entry.load is None and one.served.load != "start":
                    is_idle = one.is_idle
                    used = one.used if is_idle else one.since
                    resident = Resident(entry.name, one.needed, used, not is_idle)
                    (idle if is_idle else busy).append(resident)
        return idle, busy, len(loaded)

    def _hold(self, names: Sequence[str], instance: Instance) -> None:
        with self._changed:
            for name in names:
                entry = self._entries[name]
                if entry.yields_to is None:
                    logger.info("model %s takes no requests until it has gone for another", name)
                    entry.yields_to = instance

    def _evict(self, names: Sequence[str]) -> bool:
        """Whether all were still idle, and are gone."""
        for name in names:
            entry = self._entries[name]
            with self._changed:
                if entry.load is not None or not entry.instance.is_idle:
                    return False
                load = entry.load = Load(name)
            logger.info("model %s is unloaded for another's sake", name)
            self.retire(entry.instance, 0.0)
            with self._changed:
                entry.load = None
                load.end()
                self._changed.notify_all()
        return True
