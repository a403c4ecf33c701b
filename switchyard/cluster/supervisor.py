"""A process that supervises one engine, which Ray Serve calls a replica. Runs in one of Ray's
workers, with the environment variables of `switchyard cluster node`.
"""

import contextlib
import os
import re
import sys
import time
from typing import Any

from switchyard.app.config import read_settings
from switchyard.cluster.processes.engine_process import EngineProcess
from switchyard.cluster.processes.failures import Failures
from switchyard.cluster.wanted import Wanted, wanted
from switchyard.server.shared_engine import RELEASE

LOST = 1  # exit status


class Supervisor:
    """Starts an engine, and ends when the engine ends. Serve then starts another engine where there
    is room.
    """

    def __init__(
        self, name: str, version: str, address: str, files: str, failures: Failures
    ) -> None:
        """`version`: the version of the settings that `apply` has read. `files`: the model's
        fingerprint where `apply` ran, or an empty string if the model isn't there. Raises
        RuntimeError with a one-line message.
        """
        if failures.is_pause:
            raise RuntimeError(f"{address}: {failures.line()}")
        try:
            self._start(name, version, address, files)
        except Exception as fault:
            failures.note(str(fault))
            raise RuntimeError(f"{address}: {fault}") from None
        failures.clear()

    def _start(self, name: str, version: str, address: str, files: str) -> None:
        settings = read_settings()
        [*here] = [one for one in wanted(settings) if one.name == name]
        if [one.version for one in here] != [version]:
            raise RuntimeError(
                f"the settings of {name} are version {here[0].version if here else 'none'}, but"
                f" apply ran with {version}: copy the settings file, or install the same version"
            )
        assert settings.cluster is not None
        self._grace = settings.grace + RELEASE
        self._version = version
        self._since = time.time()
        variables = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}  # no token
        command = [sys.executable, "-m", "switchyard", "engine", "--name", name, "--at"]
        ports = settings.cluster.engine_ports
        self._engine = EngineProcess(command, address, ports, variables)
        _compare(here[0], files)
        self._engine.start(lambda: os._exit(LOST))  # Serve sees it immediately

    def info(self) -> dict[str, Any]:
        return {
            "at": self._engine.at,
            "pid": self._engine.pid,
            "supervisor": os.getpid(),
            "state": self._engine.status,
            "version": self._version,
            "since": self._since,
        }

    def check_health(self) -> None:
        if self._engine.is_over:
            raise RuntimeError(self._engine.fault)

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The number of jobs here, and the number of jobs that wait in servers for an engine. Ray
        Serve scales according to these numbers.
        """
        return loads_in(self._engine.status)

    def __del__(self) -> None:
        """Serve ends a replica by calling this method, and waits for it to return."""
        with contextlib.suppress(AttributeError):  # the constructor has failed
            self._engine.end(self._grace)


def _compare(wanted: Wanted, files: str) -> None:
    """Raises RuntimeError if the model here differs from the model where `apply` ran."""
    if files and (own := wanted.files()) != files:
        raise RuntimeError(
            f"{wanted.path} has {f'the files {own}' if own else 'no model'}, but apply ran with"
            f" {files}: copy the model"
        )


def loads_in(status: str) -> dict[str, float]:
    """The numbers in an engine's status, such as "ready, 3 jobs, 2 wanted"."""
    return {what: float(number) for number, what in re.findall(r"(\d+) (jobs|wanted)", status)}
