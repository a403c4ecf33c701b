"""What systemd is told, by the protocol of sd_notify: datagrams to the socket that it names."""

import contextlib
import socket
import time
from collections.abc import Callable, MutableMapping
from typing import NoReturn

from switchyard import engine

PERIOD = 5.0  # seconds from one message to the next
PATIENCE = 1.0  # seconds for systemd to take one
EXTENSION = 30.0  # seconds of start that a message asks for
OWN_TURN = 60.0  # seconds behind `hang_exit` for the server to recover by itself


class Notifier:
    """Says nothing where nobody listens. Any thread; signal handlers, too."""

    def __init__(self, address: str = "", watchdog: float = 0.0) -> None:
        """`watchdog`: seconds within which systemd wants a sign of life; 0: it doesn't."""
        self.is_on = bool(address)
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.period = min(PERIOD, watchdog / 3) if watchdog else PERIOD

    @classmethod
    def take(cls, variables: MutableMapping[str, str]) -> "Notifier":
        """From systemd's variables, which are taken out of there: gunicorn's master would say READY
        before there is a model, and no child is meant.
        """
        address = variables.pop("NOTIFY_SOCKET", "")
        microseconds = variables.pop("WATCHDOG_USEC", "0")
        variables.pop("WATCHDOG_PID", None)  # the master's, whose worker speaks for it
        return cls(address, int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0)

    def tell(self, *lines: str) -> None:
        if not self.is_on:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.settimeout(PATIENCE)
            sock.connect(self._address)
            sock.send("\n".join(lines).encode())

    def tell_loads(self, status: str, *more: str) -> None:
        """That a model is being loaded, however long the unit's TimeoutStartSec."""
        self.tell(f"STATUS={status}", _extension(EXTENSION), *more)

    def tell_end(self, seconds: float) -> None:
        """That the process ends, within so many seconds, whatever the unit's TimeoutStopSec."""
        self.tell("STOPPING=1", _extension(seconds))


class Pulse:
    """Tells how the models are. Signs of life end where one hangs longer than the server bears."""

    def __init__(
        self,
        notifier: Notifier,
        models: engine.Models,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notifier = notifier
        self._models = models
        self._clock = clock
        self._hangs_since: dict[str, float] = {}  # by name

    def run(self) -> NoReturn:
        """A thread of its own."""
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
        """For how many seconds a model of that name may hang."""
        config = self._models.served(name).config
        # A shared engine isn't mended by the end of a server.
        return float("inf") if config.link == "socket" else config.hang_exit + OWN_TURN


def _describe(status: engine.ModelStatus) -> str:
    progress = "" if status.progress is None else f" {status.progress:.0%}"
    return f"{status.name}: {status.state}{progress}"


def _extension(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}"
