"""What scripts/test-docs runs: a fresh clone, commands in it, and servers."""

import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any

from tests.docs.pages import ROOT

MAX_SECONDS = 600  # for a block
QUIET: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "text": True}


class Failure(Exception):
    pass


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class Clone:
    """A fresh clone with its packages, and its own home."""

    def __init__(self, place: pathlib.Path) -> None:
        self.root = place / "switchyard"
        run(["git", "clone", "--quiet", str(ROOT), str(self.root)], place)
        files = ["requirements.txt", "requirements-dev.txt"]
        run([str(self.root / "scripts" / "bootstrap"), *files], self.root)
        self.python = self.root / ".venv" / "bin" / "python"
        (place / "home").mkdir()
        self.environment = {
            **os.environ,
            "HOME": str(place / "home"),
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(self.root),
        }


def run(command: list[str], cwd: pathlib.Path, environment: dict[str, str] | None = None) -> str:
    """What it has written. Raises Failure."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env=environment, stdout=subprocess.PIPE, timeout=MAX_SECONDS, **QUIET
        )
    except subprocess.TimeoutExpired as late:
        raise Failure(f"not at its end after {MAX_SECONDS} s: {late.output!r}") from None
    if done.returncode:
        raise Failure(f"ended with status {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


class Server:
    """A command that goes on, in its own process group."""

    def __init__(self, text: str, cwd: pathlib.Path, environment: dict[str, str]) -> None:
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            ["sh", "-euc", text],
            **{"cwd": cwd, "env": environment, "stdout": self._output, **QUIET},
            start_new_session=True,
        )

    def wait_until_answers(self, url: str, any_status: bool = False) -> None:
        for _ in range(MAX_SECONDS * 2):
            if self._process.poll() is not None:
                raise Failure(f"ended with status {self._process.returncode}:\n{self._told()}")
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return
            except urllib.error.HTTPError as error:
                if any_status or error.code == 401:
                    return
            except OSError:
                pass
            time.sleep(0.5)
        raise Failure(f"no answer from {url}:\n{self._told()}")

    def stop(self) -> None:
        """Raises Failure where it doesn't end well."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            status = self._process.wait(90)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            raise Failure("SIGTERM didn't end it") from None
        if status not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            raise Failure(f"ended with status {status}:\n{self._told()}")

    def _told(self) -> str:
        self._output.seek(0)
        return self._output.read()[-3000:]
