"""The way to an engine thread, wherever it runs."""

from collections.abc import Callable, Sequence
from typing import Protocol

from switchyard.engine.messages import Command, Event

Deliver = Callable[[Sequence[Event]], None]


class Link(Protocol):
    """Made with a `Deliver`, called from threads of its own; nothing counts after `Stopped`."""

    def start(self) -> None:
        """Begin to load the model; returns at once."""

    def send(self, command: Command) -> None:
        """Never blocks. Commands arrive in order; those sent after the end are lost."""

    def join(self, timeout: float | None = None) -> bool:
        """Whether all has ended and is released within `timeout` seconds."""


class ProcessLink(Link, Protocol):
    """To an engine thread in a process of its own. `at`: the address of one that several servers
    share; empty: it is this server's own.
    """

    at: str

    @property
    def pid(self) -> int | None:
        """None while there is none."""
