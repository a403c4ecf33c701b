"""The protocol of links to an engine thread, independent of where the thread runs."""

from collections.abc import Callable, Sequence
from typing import Protocol

from switchyard.engine.messages import Command, Event

Deliver = Callable[[Sequence[Event]], None]


class Link(Protocol):
    """A link is created with a `Deliver`, which the link's threads call. `Stopped` is the last
    event.
    """

    def start(self) -> None:
        """Begin to load the model. Returns at once."""

    def send(self, command: Command) -> None:
        """Send a command. Never blocks. Commands arrive in order; commands sent after the end are
        lost.
        """

    def join(self, timeout: float | None = None) -> bool:
        """Returns whether the engine thread has ended and released everything within `timeout`
        seconds.
        """


class ProcessLink(Link, Protocol):
    """A link to an engine thread in its own process. `at`: the address of a shared engine, or an
    empty string for a process of this server.
    """

    at: str

    @property
    def pid(self) -> int | None:
        """The process id of the engine, or None if there is no process."""
