"""Creates instances for entries in the table, and points the entries to them."""

import threading
from collections.abc import Callable
from dataclasses import replace

from switchyard.engine.engine import Engine
from switchyard.engine.models.entry import Entry, Instance, Served
from switchyard.engine.models.unread import open_if_readable


class Instances:
    """The lock `changed` guards the entries. It is not held while an engine is opened."""

    def __init__(self, changed: threading.Condition, open: Callable[[Served], Engine]) -> None:
        self._changed = changed
        self._open = open

    def make(self, entry: Entry, served: Served) -> Instance:
        """Create an engine for the entry's name, without starting it. Raises ModelError."""
        served = replace(served, config=replace(served.config, name=entry.name))
        return Instance(served, self._open(served))

    def renew(self, entry: Entry) -> Instance:
        """Point the entry to a new engine with the same configuration. Raises ModelError."""
        new = self.make(entry, entry.instance.served)
        self.point(entry, new)
        return new

    def put_back(self, entry: Entry, former: Served) -> Instance:
        """Point the entry to a former configuration, even if its files can no longer be read."""
        again = Instance(former, open_if_readable(self._open, former))
        self.point(entry, again)
        return again

    def point(self, entry: Entry, new: Instance, retiring: Instance | None = None) -> None:
        with self._changed:
            if retiring is not None:
                entry.retiring.append(retiring)
            new.engine.standing.follow(entry.past, entry.instance.engine.standing)
            entry.instance = new
            self._changed.notify_all()
