"""Programs that a machine in a cluster keeps running. Independent of Ray."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from switchyard.cluster.processes.tether import tethered

LONGEST = 30.0  # seconds at most between an end and the next start
STEADY = 60.0  # seconds after which a program counts as started
END = 20.0  # seconds for a program to end after SIGTERM
LAST = 1.0  # seconds for the thread to end after the program


class Watched:
    """Restarts a program whenever it ends, after 1 second, then 2, 4, and so on up to 30. If this
    process is killed, the program gets SIGTERM, because a second instance can't start while the
    program runs.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        prepare: Callable[[], None] = lambda: None,
        explain: Callable[[str], str] = lambda line: "",
    ) -> None:
        """`prepare` runs before each start. `explain` returns the meaning of a line of the
        program's output, which is printed once per start, or an empty string to print nothing.
        """
        self.name = name
        self._command = list(command)
        self._environment = dict(environment)
        self._prepare = prepare
        self._explain = explain
        self._is_over = threading.Event()
        self._child: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # Any thread

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends the program and everything that it started. Waits for at most `END` seconds."""
        self._is_over.set()
        if (child := self._child) is not None:
            with contextlib.suppress(ProcessLookupError):
                child.terminate()
            try:
                child.wait(END)
            except subprocess.TimeoutExpired:
                kill_session(child.pid)
        self._thread.join(LAST)  # it kills what is left; but `prepare` may wait for longer

    # Own thread

    def _run(self) -> None:
        pause = 1.0
        while not self._is_over.is_set():
            began = time.monotonic()
            try:
                status = f"status {self._run_once()}"
            except Exception as reason:  # it can't be prepared or started
                status = f"{type(reason).__name__}: {reason}"
            pause = 1.0 if time.monotonic() - began > STEADY else pause
            if self._is_over.is_set():
                return
            say(f"{self.name} ended with {status}; restarting in {pause:.0f} s")
            self._is_over.wait(pause)
            pause = min(2 * pause, LONGEST)

    def _run_once(self) -> int:
        self._prepare()
        child = self._child = subprocess.Popen(
            tethered(self._command, signal.SIGTERM),
            env=self._environment,
            start_new_session=True,  # so that processes that outlive it can be found
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if self._is_over.is_set():  # `stop` has not seen it
            child.terminate()
        reader = threading.Thread(target=self._read, args=(child,), daemon=True)
        reader.start()
        status = child.wait()
        kill_session(child.pid)
        reader.join(END)
        return status

    def _read(self, child: "subprocess.Popen[str]") -> None:
        assert child.stdout is not None
        is_said = False
        with child.stdout:
            for line in child.stdout:
                if not is_said and (meaning := self._explain(line)):
                    is_said = True
                    say(meaning)
                with contextlib.suppress(OSError, ValueError):
                    sys.stdout.write(line)
                    sys.stdout.flush()


def kill_session(session: int) -> None:
    """Kills the processes of a session whose leader has ended."""
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and _session_of(entry) == session:
            with contextlib.suppress(OSError):
                os.kill(int(entry), signal.SIGKILL)


def _session_of(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[3])
    except OSError:
        return 0


def say(line: str) -> None:
    print(f"switchyard: {line}", file=sys.stderr, flush=True)
