"""What a server says on its terminal: once, at once, and what to do."""

import json
import os
import pathlib
import re
import socket
import subprocess

import pytest
from click.testing import CliRunner

from switchyard.cli import main
from tests.conftest import DEMO, run_code
from tests.faults.conftest import SCRIPTED, worker_of
from tests.live.conftest import GUNICORN, ROOT


def test_a_taken_port_is_told_at_once_and_once(start):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = start(SCRIPTED, bind=f"127.0.0.1:{port}")
        assert server.process.wait(60) == 1
    said = f"switchyard: 127.0.0.1:{port} is taken by another program"
    assert server.output.count(said) == 1 and server.output.count(f"{port} is") == 1
    assert "Connection in use" not in server.output  # gunicorn's, six times in six seconds
    assert f"such as SWITCHYARD_BIND=127.0.0.1:{port + 1}" in server.output


@pytest.mark.parametrize("option", ["--check-config", "--print-config"])
def test_a_check_of_the_configuration_loads_no_model(model_path, tmp_path, option):
    """With a torch that says so."""
    (tmp_path / "torch.py").write_text("print('torch is imported')\nraise SystemExit(9)")
    environment = {**os.environ, "SWITCHYARD_MODEL": model_path, "PYTHONPATH": f"{tmp_path}:{ROOT}"}

    def check(**settings):
        more = {"env": environment | settings, "capture_output": True, "text": True, "timeout": 60}
        return subprocess.run([*GUNICORN, option], **more)

    done = check()
    assert done.returncode == 0 and "torch" not in done.stdout and done.stderr == ""
    done = check(SWITCHYARD_GRACE="long")
    assert done.returncode == 1 and "SWITCHYARD_GRACE in the environment" in done.stderr


def resident(pid, kind):
    """Bytes of a process's memory; `Private_.*`: of what no other process has, too."""
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(map(int, re.findall(rf"^{kind}: +(\d+) kB", text, re.MULTILINE)))


def test_a_server_on_a_cpu_warns_of_no_cuda_and_takes_the_memory_that_estimate_shows(start):
    server = start(model=DEMO, link="thread", is_warm=False).wait_until_ready()
    taken = resident(worker_of(server), "Rss") + resident(server.process.pid, "Private_.*")
    shown = CliRunner().invoke(main, ["estimate", str(DEMO), "--json"]).stdout
    assert json.loads(shown)["ram"] == pytest.approx(taken, rel=0.1)
    assert server.stop() == 0
    assert "CUDA" not in server.output and "Warning" not in server.output


def test_all_else_that_is_printed_while_the_library_is_imported_is_seen():
    """By other threads: here it prints as it is imported, and another thread does."""
    code = """
import sys, threading
from switchyard.engine.backends.exl2 import cpu
from switchyard.engine.backends.exl2.cpu import importlib
real = importlib.import_module
def import_module(name):
    if name == "exllamav2.attn":
        print("unseen")
        other = threading.Thread(target=print, args=("seen",))
        other.start()
        other.join()
    return real(name)
importlib.import_module = import_module
cpu.install()
print("after")
"""
    assert run_code(code) == "seen\nafter\n"
