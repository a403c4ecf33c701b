"""Leases engines to requests, and waits for loads."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from switchyard.engine.errors import Dead, Full, Loading, Refused, Unloaded
from switchyard.engine.models.entry import Entry, Instance, Lease
from switchyard.engine.models.lifecycle import RETRY, Lifecycle
from switchyard.engine.models.load import Load

LOOK = 0.25  # seconds between checks of a waiting request


class Lessor:
    """The condition `changed` guards the entries, and requests wait on it."""

    def __init__(self, changed: threading.Condition, life: Lifecycle, load_wait: float) -> None:
        """`load_wait`: seconds that a request waits for its model."""
        self._changed = changed
        self._life = life
        self._load_wait = load_wait
        self.is_open = False  # False: a lease needs no loaded model; the engine refuses jobs itself

    def lease(self, entry: Entry, check: Callable[[], None]) -> Lease:
        """See `Models.lease`."""
        with self._changed:
            lease = self._lease(entry)
            if lease is not None:
                return lease
        until = time.monotonic() + self._load_wait
        with self._waiting(entry):
            while True:
                check()
                with self._changed:
                    lease = self._lease(entry)
                    if lease is not None:
                        return lease
                    load = entry.load
                    if load is None and entry.yields_to is None and not entry.is_ending:
                        load = self._begin(entry)
                    left = until - time.monotonic()
                    if left <= 0:
                        raise Loading(f"model {entry.name} is loading", RETRY)
                    self._changed.wait(min(LOOK, left))
                if load is not None and load.error is not None and self.is_open:
                    raise _refusal(entry, load, self._life.wait_of(entry))

    @contextlib.contextmanager
    def _waiting(self, entry: Entry) -> Iterator[None]:
        """Limits the number of waiting requests, because each holds a request thread. Raises
        Full.
        """
        with self._changed:
            number, most = entry.num_waiting, max(entry.instance.served.config.max_pending, 1)
            if number >= most:
                raise Full(
                    f"the queue is full: {number} requests wait for model {entry.name} to load,"
                    f" and the limit is {most}",
                    RETRY,
                )
            entry.num_waiting += 1
        try:
            yield
        finally:
            with self._changed:
                entry.num_waiting -= 1

    # Under the lock

    def _lease(self, entry: Entry) -> Lease | None:
        """Returns a lease, or None if the engine doesn't exist yet."""
        if self.is_open and (entry.yields_to is not None or not entry.is_there):
            return None
        instance = entry.instance
        instance.num_leases += 1
        instance.used = self._life.clock()
        return Lease(instance.engine, lambda: self._release(instance))

    def _begin(self, entry: Entry) -> Load:
        """Begin to load the model. Raises Refused if requests may not load it."""
        if entry.instance.served.load == "manual":
            why = f": {entry.error}" if entry.error is not None else ""
            raise Unloaded(
                f"model {entry.name} is not loaded{why}; only its operator can load it", RETRY
            )
        wait = self._life.wait_of(entry)
        if wait > 0:
            raise Dead(f"model {entry.name}: {entry.error}", wait)
        return self._life.load(entry)

    def _release(self, instance: Instance) -> None:
        with self._changed:
            instance.num_leases -= 1
            instance.used = self._life.clock()
            if not instance.num_leases:
                self._changed.notify_all()


def _refusal(entry: Entry, load: Load, wait: float) -> Refused:
    """Returns the error for a request whose load failed."""
    if load.is_cancelled:
        return Unloaded(f"model {entry.name} was unloaded before it had loaded", RETRY)
    if isinstance(load.error, Loading):
        return Loading(str(load.error), RETRY)
    return Dead(f"model {entry.name}: {load.error}", max(wait, 1.0))
