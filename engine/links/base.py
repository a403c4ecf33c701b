"""The protocol of links to an engine thread, independent of where it runs."""

from collections.abc import Callable, Sequence
from typing import Protocol

from switchyard.engine.messages import Command, Event

Deliver = Callable[[Sequence[Event]], None]


class Link(Protocol):
    """Made with a `Deliver`, which threads of the link call. `Stopped` is the last event."""

    def start(self) -> None:
        """Begin to load the model; returns at once."""

    def send(self, command: Command) -> None:
        """Never blocks. Commands arrive in order; those sent after the end are lost."""

    def join(self, timeout: float | None = None) -> bool:
        """Whether the engine thread has ended and released everything within `timeout` seconds."""


class ProcessLink(Link, Protocol):
    """A link to an engine thread in its own process. `at`: the address of a shared engine;
    empty for this server's own process.
    """

    at: str

    @property
    def pid(self) -> int | None:
        """The process id of the engine; None without a process."""
