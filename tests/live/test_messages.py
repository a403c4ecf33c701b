"""What a server says on its terminal: once, at once, and what to do."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner

from switchyard.cli import main
from switchyard.server import address
from tests.conftest import DEMO
from tests.faults.conftest import SCRIPTED, worker_of
from tests.live.conftest import GUNICORN, ROOT


def wait_for_banner(server):
    deadline = time.monotonic() + 60
    while "Try: " not in server.output:
        assert time.monotonic() < deadline and server.process.poll() is None, server.output
        time.sleep(0.05)


def test_a_taken_port_is_told_at_once_and_once(start):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = start(SCRIPTED, bind=f"127.0.0.1:{port}")
        assert server.process.wait(60) == 1
    said = f"switchyard: 127.0.0.1:{port} is taken by another program"
    assert server.output.count(said) == 1 and server.output.count(f"{port} is") == 1
    assert "Connection in use" not in server.output  # gunicorn's, six times in six seconds
    assert f"such as SWITCHYARD_BIND=127.0.0.1:{port + 1}" in server.output


@pytest.mark.parametrize(
    ("bind", "says"),
    [
        ("192.0.2.1:80", "can't be listened on: Cannot assign requested address"),
        ("[::1]:{}", "[::1]:{} is taken by another program"),
        ("127.0.0.1:70000", None),  # the settings' to refuse
        ("fd://3", None),
        ("nonsense", None),
        ("unix:/nowhere/at/all", None),
    ],
)
def test_what_can_not_be_listened_on(bind, says):
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        port = listener.getsockname()[1]
        refusal = address.refusal(bind.format(port))
    assert (refusal is None) == (says is None)
    assert says is None or says.format(port) in refusal


def test_a_unix_socket_is_its_owners_alone_and_no_second_server_takes_it(start, tmp_path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as left_over:  # by a server that was killed
        left_over.bind(str(path))
    server = start(SCRIPTED, bind=f"unix:{path}")
    wait_for_banner(server)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    second = start(SCRIPTED, bind=f"unix:{path}")
    assert second.process.wait(60) == 1
    assert f"switchyard: unix:{path} is taken by another server" in second.output
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    assert server.stop() == 0
    shared = start([*SCRIPTED, "--umask", "0o117"], bind=f"unix:{path}")
    wait_for_banner(shared)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660


def test_a_changed_file_of_keys_is_told_while_nobody_asks(start, tmp_path):
    keys = tmp_path / "keys.toml"
    entry = '[[keys]]\nname = "{0}"\nhash = "sha256:{1}"\n'
    keys.write_text(entry.format("ann", 64 * "0"))
    keys.chmod(0o600)
    server = start(SCRIPTED, keys_file=keys)
    wait_for_banner(server)
    keys.write_text(keys.read_text() + entry.format("bob", 64 * "1"))
    deadline = time.monotonic() + 60
    while "server: keys reloaded: added bob" not in server.output:
        assert time.monotonic() < deadline, server.output
        time.sleep(0.05)


@pytest.mark.parametrize("option", ["--check-config", "--print-config"])
def test_a_check_of_the_configuration_loads_no_model(model_path, tmp_path, option):
    def check(**settings):
        """With a torch that says so."""
        (tmp_path / "torch.py").write_text("print('torch is imported')\nraise SystemExit(9)")
        environment = {**os.environ, "SWITCHYARD_MODEL": model_path, **settings}
        environment["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
        command = [*GUNICORN, option]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    done = check()
    assert done.returncode == 0 and "torch" not in done.stdout and done.stderr == ""
    done = check(SWITCHYARD_GRACE="long")
    assert done.returncode == 1 and "SWITCHYARD_GRACE in the environment" in done.stderr


def test_a_model_that_can_not_be_loaded_is_said_once(start, model_path, tmp_path):
    path = shutil.copytree(model_path, tmp_path / "model")
    (path / "model.safetensors").write_bytes(b"no weights")
    server = start(model=path)
    assert server.process.wait(60) == 3
    errors = [line for line in server.output.splitlines() if "can't be read" in line]
    assert len(errors) == 1 and errors[0].startswith(f"switchyard: {path}/model.safetensors")
    assert "ERROR" not in server.output and "failed to boot" not in server.output


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
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "seen\nafter\n", done


@pytest.mark.parametrize(
    ("number", "how"),
    [(1, "SIGTERM in JSON"), (1, "Ctrl-C"), (2, "Ctrl-C"), (1, "SIGTERM"), (0, "Ctrl-C")],
)
def test_the_end_says_what_it_waits_for(start, number, how):
    log_format = "json" if "JSON" in how else "text"
    server = start(SCRIPTED, grace=30, log_format=log_format).wait_until_ready()
    texts, started = [], threading.Semaphore(0)

    def read():
        body = {"prompt": "x", "max_tokens": 300, "n": 2, "stream": True}
        with server.post("/v1/completions", body, stream=True) as response:
            lines = response.iter_lines()
            texts.append(next(lines))
            started.release()
            texts.extend(lines)

    threads = [threading.Thread(target=read) for _ in range(number)]
    for thread in threads:
        thread.start()
        assert started.acquire(timeout=30)
    if how == "Ctrl-C":  # a terminal's, for all processes of the group: the master's comes later
        os.kill(worker_of(server), signal.SIGINT)
    server.process.send_signal(signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM)
    for thread in threads:
        thread.join(60)
    assert server.process.wait(60) == 0
    assert server.output.count("finishing") == (number > 0)
    if number:
        says = f"switchyard: finishing {number} request{'s' * (number > 1)}, 30 s at most; "
        says += "a second Ctrl-C or SIGTERM ends it now"
        assert (f'"message": "{says}"}}\n' if "JSON" in how else f"{says}\n") in server.output
    assert texts.count(b"data: [DONE]") == number
    assert all(json.loads(text[6:]) for text in texts if text.startswith(b"data: {"))
