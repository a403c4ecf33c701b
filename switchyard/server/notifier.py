"""Sends messages to systemd with the protocol of sd_notify, as datagrams to a socket."""

import contextlib
import socket
import time
from collections.abc import Callable, MutableMapping
from typing import NoReturn

from switchyard import engine

PERIOD = 5.0  # seconds between messages
PATIENCE = 1.0  # seconds for systemd to receive a message
EXTENSION = 30.0  # seconds by which a message extends the time allowed for the start
OWN_TURN = 60.0  # seconds after `hang_exit` in which the server may recover by itself


class Notifier:
    """Does nothing without an address. Can be used on any thread and in signal handlers."""

    def __init__(self, address: str = "", watchdog: float = 0.0) -> None:
        """`watchdog`: the maximum number of seconds between signs of life for systemd, or 0 if none
        are needed.
        """
        self.is_on = bool(address)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.period = min(PERIOD, watchdog / 3) if watchdog else PERIOD

    @classmethod
    def take(cls, variables: MutableMapping[str, str]) -> "Notifier":
        """Removes systemd's variables from `variables`, because otherwise gunicorn's master would
        send READY before a model is loaded, and because children must not send messages.
        """
        address = variables.pop("NOTIFY_SOCKET", "")
        microseconds = variables.pop("WATCHDOG_USEC", "0")
        variables.pop("WATCHDOG_PID", None)  # names the master, but the worker sends the messages
        return cls(address, int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0)

    def tell(self, *lines: str) -> None:
        if not self.is_on:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(self._address)
            sock.send("\n".join(lines).encode())

    def tell_loads(self, status: str, *more: str) -> None:
        """Extends the unit's TimeoutStartSec, because a model is loading."""
        self.tell(f"STATUS={status}", _extension(EXTENSION), *more)

    def tell_end(self, seconds: float) -> None:
        """Extends the unit's TimeoutStopSec, because the process will end within `seconds`."""
        self.tell("STOPPING=1", _extension(seconds))


class Pulse:
    """Reports the models' states. The signs of life stop when a model hangs for longer than
    `_bears` allows.
    """

    def __init__(
        self,
        notifier: Notifier,
        models: engine.Models,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notifier = notifier
        self._models = models
        self._clock = clock
        self._hangs_since: dict[str, float] = {}  # start of a hang, by model

    def run(self) -> NoReturn:
        """Runs on a separate thread."""
        while True:
            self.beat()
            time.sleep(self._notifier.period)

    def beat(self) -> None:
        found = [self._models.status(name) for name in self._models.names]
        status = ", ".join(map(_describe, found))
        sign = ["WATCHDOG=1"] if self._is_alive(found) else []
        if any(one.state == "loading" for one in found):
            self._notifier.tell_loads(status, *sign)
        else:
            self._notifier.tell(f"STATUS={status}", *sign)

    def _is_alive(self, found: list[engine.ModelStatus]) -> bool:
        now = self._clock()
        before = self._hangs_since
        self._hangs_since = {
            one.name: before.get(one.name, now) for one in found if one.state == "hanging"
        }
        return all(now - since <= self._bears(name) for name, since in self._hangs_since.items())

    def _bears(self, name: str) -> float:
        """The seconds for which a model of this name may hang."""
        config = self._models.served(name).config
        # Ending the server would not repair a shared engine.
        return float("inf") if config.link == "socket" else config.hang_exit + OWN_TURN


def _describe(status: engine.ModelStatus) -> str:
    progress = "" if status.progress is None else f" {status.progress:.0%}"
    return f"{status.name}: {status.state}{progress}"


def _extension(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}"
