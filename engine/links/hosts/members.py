"""The shared engines that exist now, according to the sources that list them."""

import heapq
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from hashlib import sha256

from switchyard.engine.errors import ModelError
from switchyard.engine.links.base import Deliver
from switchyard.engine.links.hosts import address
from switchyard.engine.links.replicas import ReplicaLink
from switchyard.engine.links.roster import MakeLink
from switchyard.engine.messages import Command, Recovering, Stop
from switchyard.engine.sources import is_source
from switchyard.files import read_file

logger = logging.getLogger(__name__)

PERIOD = 1.0  # seconds between readings
MISSES = 2  # consecutive readings without an address, after which its engine leaves
REMIND = 60.0  # seconds between log lines of a lasting fault
CELL = 30  # maximum number of engines for one server
MAX_FILE = 1 << 16  # bytes
LOOKUP = 1.0  # seconds that `join` waits for a name server


class Members:
    """The engines named by addresses and sources. Not thread-safe."""

    def __init__(
        self, at: Sequence[str], check: Callable[[str], None], own: str | None = None
    ) -> None:
        """`check` raises ModelError for an address that no engine can have. `own`: a unique name
        for this server, by default a random name.
        """
        self._at = at
        self._check = check
        self._own = own or secrets.token_hex()
        self._misses: dict[str, int] = {}  # by address: readings since it was named
        self.fault = ""  # of the last reading
        self._told = 0.0

    @property
    def are_known(self) -> bool:
        """Whether a reading has succeeded."""
        return bool(self._misses)

    def read(self) -> list[str]:
        """Returns all engines that are listed now, each once. Raises OSError for a source that
        can't be read, and ValueError for a source that is empty or has an invalid line.
        """
        found: list[str] = []
        for at in self._at:
            kind, _, rest = at.partition(":")
            if not is_source(at):
                found.append(at)
            elif named := self._read_file(rest) if kind == "file" else _look_up(rest):
                found += named
            else:
                raise ValueError(f"{at} lists no engines")
        return list(dict.fromkeys(found))

    def follow(self) -> list[str] | None:
        """Read the sources again, and return this server's engines. An address is dropped only if
        two readings in a row lack it. Returns None if the reading failed, because a faulty source
        must not disconnect engines.
        """
        try:
            named = self.read()
        except (OSError, ValueError) as fault:
            self._tell(str(fault))
            return None
        self._tell("")
        for at in list(self._misses):
            self._misses[at] += 1
            if self._misses[at] >= MISSES:
                del self._misses[at]
        self._misses |= dict.fromkeys(named, 0)
        return self._cell(list(self._misses))

    def _cell(self, at: list[str]) -> list[str]:
        """Chooses this server's engines among many, by rendezvous hashing (Thaler, Ravishankar
        1998), so that an engine that joins or leaves changes at most one of them. Reading from more
        than a few hundred engines would occupy a core.
        """
        if len(at) <= CELL:
            return at
        return heapq.nlargest(
            CELL, at, key=lambda one: sha256(f"{self._own} {one}".encode()).digest()
        )

    def _read_file(self, path: str) -> list[str]:
        found: list[str] = []
        text = read_file(path, MAX_FILE)[0]
        if not text.isascii():
            raise ValueError(f"file:{path} is not ASCII")
        for number, line in enumerate(text.decode().splitlines(), 1):
            if not (at := line.partition("#")[0].strip()):
                continue
            where = f"file:{path}, line {number}"
            if is_source(at):
                raise ValueError(f"{where}: {at!r} must be the address of an engine")
            if at in found:
                raise ValueError(f"{where}: {at} is listed twice")
            try:
                self._check(at)
            except ModelError as fault:
                raise ValueError(f"{where}: {str(fault).removeprefix('at: ')}") from None
            found.append(at)
        return found

    def _tell(self, fault: str) -> None:
        """Log a fault once, then every minute, and log its end."""
        now = time.monotonic()
        if fault and (fault != self.fault or now >= self._told + REMIND):
            self._told = now
            logger.error("the engines stay as they are: %s", fault)
        elif self.fault and not fault:
            logger.info("the sources can be read again; the fault was: %s", self.fault)
        self.fault = fault


class FollowingLink:
    """A link to the engines that sources list. These engines may join and leave."""

    def __init__(
        self,
        name: str,
        members: Members,
        makers: Callable[[str], MakeLink],
        link: ReplicaLink,
        deliver: Deliver,
    ) -> None:
        """`name`: the model's name. `makers`: returns the function that creates the link to an
        address. `deliver`: the same function that `link` has.
        """
        self._link = link
        self._deliver = deliver
        self._members = members
        self._makers = makers
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"members-{name}", daemon=True)

    # Any thread

    def start(self) -> None:
        self._link.start()
        self._thread.start()

    def send(self, command: Command) -> None:
        if isinstance(command, Stop):
            self._is_over.set()
        self._link.send(command)

    def join(self, timeout: float | None = None) -> bool:
        """Returns whether all links have ended. Doesn't wait for a name server that doesn't
        respond.
        """
        if self._thread.ident is not None:
            self._thread.join(LOOKUP if timeout is None else min(timeout, LOOKUP))
        return self._link.join(timeout)

    # Thread of the members

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                self._follow()
                self._link.tell_demand()
            except Exception:
                logger.exception("the engines stay as they are")
            self._is_over.wait(PERIOD)

    def _follow(self) -> None:
        if (named := self._members.follow()) is not None:
            self._link.follow({at: self._makers(at) for at in named})
        elif not self._members.are_known:
            self._deliver([Recovering(f"no engine: {self._members.fault}")])


def _look_up(place: str) -> list[str]:
    """Returns all addresses of a name, with its port. Raises OSError."""
    host, port = address.host_and_port(place)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as fault:
        raise OSError(f"dns:{place}: {fault.strerror or fault}") from None
    hosts = sorted({str(where[0]) for *_, where in found})
    return [f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in hosts]
