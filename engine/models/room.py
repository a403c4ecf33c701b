"""Makes room for a model by evicting other models."""

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

RELEASE = 30.0  # seconds from an engine's last job to its end


class Look(Protocol):
    """The source of memory figures: `engine.memory.residency`, or a test's replacement."""

    def needed(self, config: ModelConfig) -> Mapping[Place, int]: ...
    def free(self, places: Collection[Place]) -> Mapping[Place, int]: ...


class Room:
    """The lock `changed` guards the entries, and is not held while engines end. Only one change at
    a time calls these methods for each GPU.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        changed: threading.Condition,
        max_loaded: int = 0,
        look: Look = residency,
    ) -> None:
        """`max_loaded`: the maximum number of engines, or 0 if only memory limits the number."""
        self._entries = entries
        self._changed = changed
        self._max_loaded = max_loaded
        self._look = look
        self._coming: set[str] = set()  # names of models that have a place, and are not loaded yet

    def make(
        self, instance: Instance, is_pressing: bool = False
    ) -> Literal["there", "busy", "none"]:
        """Evict idle models, least recently used first, until there is room.

        Returns "there" if there is room. Returns "busy" if there will be room after other models
        have finished their jobs, loads or unloads; with `is_pressing`, these models accept no more
        requests until `let_go_on`. Returns "none" if the estimate finds no room and no
        other model to evict; the loader then decides. Raises NoRoom, before any
        eviction, if evicting all other models would not suffice.
        """
        found = self._make(instance, is_pressing)
        # Meanwhile, a change on other GPUs may have taken the place.
        return found if found == "busy" or self._take_place(instance) else "busy"

    def _make(self, instance: Instance, is_pressing: bool) -> Literal["there", "busy", "none"]:
        needed = instance.needed = self._look.needed(instance.served.config)
        idle, busy, num_loaded = self._others(instance)
        excess = max(num_loaded + 1 - self._max_loaded, 0) if self._max_loaded else 0
        if excess > len(idle) + len(busy):
            raise NoRoom(f"{num_loaded} models stay loaded, but max_loaded is {self._max_loaded}")
        free = self._look.free(needed.keys())
        names = residency.victims(needed, free, idle, excess)
        if names is None:
            others = [*idle, *busy]
            if not others:
                return "none"
            away = residency.victims(needed, free, others, excess)
            if away is None:
                raise _no_room(needed, free, others)
            if is_pressing:
                self._hold(away, instance)
            return "busy"
        return "there" if self._evict(names) else "busy"

    def let_go_on(self, instance: Instance) -> None:
        """Called when the load of `instance` has ended. The models that had to make room for it
        accept requests again.
        """
        with self._changed:
            self._coming.discard(instance.served.config.name)
            for entry in self._entries.values():
                if entry.yields_to is instance:
                    entry.yields_to = None
            self._changed.notify_all()

    def make_beside(self, instance: Instance) -> bool:
        """Evict idle models, but only if that makes enough room. Returns whether there is room."""
        needed = instance.needed = self._look.needed(instance.served.config)
        idle, _, _ = self._others(instance)
        names = residency.victims(needed, self._look.free(needed.keys()), idle)
        return names is not None and self._evict(names)

    def check_after(self, old: Instance, new: Instance) -> None:
        """Raises NoRoom if, according to the estimate, there would be no room even without `old`
        and all idle models.
        """
        idle, _, _ = self._others(new)
        new.needed = new.needed or self._look.needed(new.served.config)
        free = self._look.free(new.needed.keys())
        gone = [*idle, Resident(old.served.config.name, self._taken(old), old.used)]
        if residency.victims(new.needed, free, gone) is None:
            raise _no_room(new.needed, free, gone)

    def evict_one(self, but: Instance) -> bool:
        """Evict the least recently used idle model. Returns whether there was an idle model."""
        idle, _, _ = self._others(but)
        return bool(idle) and self._evict([min(idle, key=lambda one: one.used).name])

    def retire(self, instance: Instance, drain: float) -> None:
        """End an engine after its last job, or after `drain` seconds."""
        begin = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: not instance.num_leases, drain)
        left = max(drain - (time.monotonic() - begin), 0.0)
        instance.engine.close(left, RELEASE)

    def _take_place(self, instance: Instance) -> bool:
        """Take one of the `max_loaded` places until `let_go_on`. Returns whether one was free."""
        if not self._max_loaded:
            return True
        with self._changed:
            if len(self._in_places(instance)) >= self._max_loaded:
                return False
            self._coming.add(instance.served.config.name)
            return True

    def _in_places(self, but: Instance) -> list[Entry]:
        """The models that count towards `max_loaded`, including models that will be loaded in any
        case, for example with the server or by a swap. The caller must hold the lock.
        """
        return [
            entry
            for entry in self._entries.values()
            if entry.instance is not but
            and (entry.instance.is_loaded or entry.name in self._coming or entry.is_sure_to_load)
        ]

    def _others(self, instance: Instance) -> tuple[list[Resident], list[Resident], int]:
        """The idle models and the busy models that may be evicted, and the number of places taken.
        A model that is being loaded or unloaded is busy.
        """
        with self._changed:
            loaded = self._in_places(instance)
            found = [
                (entry.name, entry.instance, entry.load is None and entry.instance.is_idle)
                for entry in loaded
                if entry.instance.served.load != "start" or (entry.load and entry.load.is_unload)
            ]
        residents = [
            Resident(name, self._taken(one), one.used if is_idle else one.since, not is_idle)
            for name, one, is_idle in found
        ]
        idle = [one for one in residents if not one.is_busy]
        busy = [one for one in residents if one.is_busy]
        return idle, busy, len(loaded)

    def _taken(self, instance: Instance) -> Mapping[Place, int]:
        """The estimated memory of a loaded model, in bytes. If the model was loaded with the
        server, its memory is estimated only now.
        """
        return instance.needed or self._look.needed(instance.served.config)

    def _hold(self, names: Sequence[str], instance: Instance) -> None:
        with self._changed:
            for name in names:
                entry = self._entries[name]
                if entry.yields_to is None and entry.instance.is_loaded:
                    logger.info(
                        "model %s accepts no requests until it has been unloaded to make room",
                        name,
                    )
                    entry.yields_to = instance

    def _evict(self, names: Sequence[str]) -> bool:
        """Unload the models. Returns whether all were still idle and have been unloaded."""
        for name in names:
            entry = self._entries[name]
            with self._changed:
                if entry.load is not None or not entry.instance.is_idle:
                    return False
                load = entry.load = Load(name)
            logger.info("model %s is unloaded to make room for another", name)
            self.retire(entry.instance, 0.0)
            with self._changed:
                entry.load = None
                load.end()
                self._changed.notify_all()
        return True


def _no_room(
    needed: Mapping[Place, int], free: Mapping[Place, int], gone: Sequence[Resident]
) -> NoRoom:
    """Returns the error, with figures, for a model that has no room even without `gone`."""
    sums = []
    for place, size in needed.items():
        there = free.get(place, 0) + sum(one.taken.get(place, 0) for one in gone)
        of = "memory" if place == "host" else f"GPU {place}"
        sums.append(f"{size / GIB:.1f} GiB of {of} ({there / GIB:.1f} GiB free)")
    told = ", ".join(sums)
    return NoRoom(f"no room for the model, even if others are unloaded: it needs {told}")
