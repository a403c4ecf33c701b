"""Supervises one `switchyard engine`, as systemd would. Its sd_notify messages show whether it is
ready, alive or silent. Independent of Ray.
"""

import contextlib
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from switchyard.cluster.processes.tether import tethered

FIRST_SIGN = 120.0  # seconds for the first sign of life of a process that imports torch
SILENCE = 12.0  # seconds without a sign of life, after which the process is killed
WATCHDOG = 10.0  # seconds in which an engine sends three signs of life
LOOK = 0.2  # seconds between checks of the clock
KILLED = 5.0  # seconds in which the kernel ends a killed process
LINES = 20  # of its log, kept to explain a fault
# An engine's message about a port that another process uses. Another port may be free.
IN_USE = "can't listen on"


class EngineFailed(Exception):
    """An engine did not become ready. The message is one line, which includes the engine's last
    line of output.
    """


class Place:
    """An address that no other supervisor on this machine uses. An abstract Unix socket reserves
    the address; the kernel keeps such a socket for each network namespace, and removes it with the
    process.
    """

    PREFIX = "switchyard-engine-"

    def __init__(self, address: str, port: int) -> None:
        """Raises OSError if another supervisor uses the address."""
        self.at = f"{address}:{port}"
        self._name = socket.socket(socket.AF_UNIX)
        try:
            self._name.bind(f"\0{self.PREFIX}{self.at}")
        except OSError:
            self._name.close()
            raise

    def release(self) -> None:
        self._name.close()

    @classmethod
    def taken(cls, address: str) -> list[str]:
        """Returns the places at one of this machine's addresses that supervisors hold now."""
        with open("/proc/net/unix") as file:
            names = re.findall(rf" @{cls.PREFIX}(\S+)$", file.read(), re.MULTILINE)
        return sorted({one for one in names if one.startswith(f"{address}:")})


class EngineProcess:
    """Starts an engine on a free port. `start` returns once the engine is ready."""

    def __init__(
        self,
        command: Sequence[str],
        address: str,
        ports: Sequence[int],
        environment: Mapping[str, str],
        silence: float = SILENCE,
        first_sign: float = FIRST_SIGN,
    ) -> None:
        """`command`: the command without the engine's address, which becomes its last argument.
        `silence`: seconds after which a silent process is killed; `first_sign`: the same limit
        until its first sign of life.
        """
        self._command = list(command)
        self._address = address
        self._ports = ports
        self._environment = dict(environment)
        self._silence, self._first_sign = silence, first_sign
        self._child: subprocess.Popen[bytes] | None = None
        self._place: Place | None = None
        self._lines: deque[str] = deque(maxlen=LINES)
        self._is_born = threading.Event()
        self._is_ready = threading.Event()
        self._is_over = threading.Event()
        self._is_ending = False
        self._fault = ""
        self.status = ""

    # Any thread

    @property
    def at(self) -> str:
        return self._place.at if self._place else ""

    @property
    def pid(self) -> int:
        return self._child.pid if self._child else 0

    @property
    def is_over(self) -> bool:
        return self._is_over.is_set()

    @property
    def fault(self) -> str:
        """Why the process ended without a call to `end`, or an empty string if it hasn't."""
        return "" if self._is_ending or not self.is_over else self._fault

    def start(self, ended: Callable[[], None] = lambda: None) -> None:
        """Waits until the engine is ready. `ended` is called once, on another thread, when a ready
        engine ends without a call to `end`. Raises EngineFailed.
        """
        # At random: servers drop the address of a lost engine soon after another has started, and
        # so would drop a new engine at the same address.
        for port in random.sample(self._ports, len(self._ports)):
            try:
                self._place = Place(self._address, port)
            except OSError:
                continue
            self._run(ended)
            if self._is_ready.is_set():
                return
            self._place.release()
            if not any(IN_USE in line for line in self._lines):
                raise EngineFailed(self._fault)
            self._lines.clear()
        raise EngineFailed(f"no port from {self._ports[0]} to {self._ports[-1]} is free")

    def end(self, grace: float) -> bool:
        """Lets the engine finish its requests for `grace` seconds, then kills it. Returns whether
        it ended by itself. Waits for at most `grace` plus a few seconds.
        """
        self._is_ending = True
        if self._child is None:
            return True
        self._signal(signal.SIGTERM)
        is_gentle = self._is_over.wait(grace)
        if not is_gentle:
            self._signal(signal.SIGKILL)
            self._is_over.wait(KILLED)
        if self._place:
            self._place.release()
        return is_gentle

    # Inside

    def _run(self, ended: Callable[[], None]) -> None:
        """Returns once the engine is ready, or has ended."""
        self._is_born.clear()
        self._is_over.clear()
        threading.Thread(target=self._keep, args=(ended,), name="engine", daemon=True).start()
        self._is_born.wait()
        while not self._is_ready.is_set() and not self._is_over.is_set():
            self._is_ready.wait(LOOK)

    def _signal(self, number: int) -> None:
        if self._child is not None and not self.is_over:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child.pid, number)

    # Thread of the engine. It lives as long as the process, which is killed with the thread.

    def _keep(self, ended: Callable[[], None]) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="switchyard-") as folder,
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as signs,
        ):
            signs.bind(f"{folder}/notify")
            signs.settimeout(LOOK)
            try:
                self._child = child = self._start_child(f"{folder}/notify")
            except OSError as reason:
                self._fault = f"the engine can't be started: {reason}"
                self._is_born.set()
                self._is_over.set()
                return
            log = threading.Thread(target=self._read, args=(child,), name="log", daemon=True)
            log.start()
            self._is_born.set()
            self._listen(child, signs)
        log.join(KILLED)  # takes this long only if a child process has outlived the engine
        said = f"the engine ended with status {child.returncode}: {self._last_line()}"
        self._fault = self._fault or said
        was_ready = self._is_ready.is_set()
        self._is_over.set()
        if was_ready and not self._is_ending:
            ended()

    def _last_line(self) -> str:
        """The reason that the engine printed, if any; lines of its log may follow it."""
        reasons = [line for line in self._lines if line.startswith("switchyard: ")]
        return (reasons or self._lines or ["no output"])[-1]

    def _start_child(self, notify: str) -> subprocess.Popen[bytes]:
        own = {"NOTIFY_SOCKET": notify, "WATCHDOG_USEC": str(round(WATCHDOG * 1e6))}
        return subprocess.Popen(
            tethered([*self._command, self.at], signal.SIGKILL),
            env={**self._environment, **own},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def _listen(self, child: subprocess.Popen[bytes], signs: socket.socket) -> None:
        """Runs until the process ends. Kills a silent process, because a frozen process doesn't
        react to SIGTERM.
        """
        deadline = time.monotonic() + self._first_sign
        while child.poll() is None:
            try:
                message = signs.recv(4096).decode(errors="replace")
            except TimeoutError:
                if time.monotonic() > deadline:
                    self._fault = self._fault or "the engine gave no sign of life"
                    child.kill()
                continue
            deadline = time.monotonic() + self._take(message)
        signs.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:  # what it sent just before it ended
                self._take(signs.recv(4096).decode(errors="replace"))

    def _take(self, message: str) -> float:
        """Returns the seconds within which the next sign must arrive."""
        allowed = self._silence  # longer while it loads or drains: the message says how long
        for line in message.splitlines():
            name, _, value = line.partition("=")
            if line == "READY=1":
                self._is_ready.set()
            elif name == "STATUS":
                self.status = value
            elif name == "EXTEND_TIMEOUT_USEC" and value.isdecimal():
                allowed = int(value) / 1e6
        return allowed

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        """Passes the engine's log on, and keeps its last lines."""
        assert child.stderr is not None
        with child.stderr:
            for line in child.stderr:
                if text := line.decode(errors="replace").rstrip():
                    self._lines.append(text)
                    with contextlib.suppress(OSError, ValueError):
                        print(text, file=sys.stderr, flush=True)
