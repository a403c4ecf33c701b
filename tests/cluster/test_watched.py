"""Programs that are started again, and what they leave, with real processes."""

import os
import subprocess
import sys
import time

import pytest

from switchyard.cluster.processes import watched
from switchyard.cluster.processes.watched import Watched
from tests.cluster.test_engine_process import is_there
from tests.conftest import wait_for

# Starts a process that ignores everything but SIGKILL, says its number, and goes on.
LEAVES = """
import os, signal, subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code])
print("started", child.pid, flush=True)
if sys.argv[1] == "ends":
    sys.exit(5)
time.sleep(600)
"""


@pytest.fixture
def watch(monkeypatch, capfd):
    monkeypatch.setattr(watched, "LONGEST", 0.02)
    monkeypatch.setattr(watched, "END", 10.0)
    made = []

    def watch(way, **more):
        one = Watched("it", [sys.executable, "-c", LEAVES, way], os.environ, **more)
        made.append(one)
        one.start()
        return one

    yield watch
    for one in made:
        one.stop()


def started(told):
    return [int(line.split()[1]) for line in told.splitlines() if line.startswith("started")]


def gather(capfd, told, number):
    deadline = time.monotonic() + 30
    while len(started(told)) < number:
        assert time.monotonic() < deadline, told
        time.sleep(0.01)
        out, err = capfd.readouterr()
        told += out + err
    return told


def test_a_program_that_ends_is_started_again_and_leaves_nothing(watch, capfd):
    prepared = []
    one = watch("ends", prepare=lambda: prepared.append(1))
    told = gather(capfd, "", 3)
    one.stop()
    out, err = capfd.readouterr()
    assert "switchyard: it ended with status 5; restarting in 1 s" in told + out + err
    assert len(prepared) >= 3
    for pid in started(told + out):
        wait_for(lambda pid=pid: not is_there(pid))


def test_what_cannot_be_started_is_said_and_tried_again(watch, capfd):
    faults = iter([OSError("no room")])

    def prepare():
        for fault in faults:
            raise fault

    one = watch("stays", prepare=prepare)
    told = gather(capfd, "", 1)
    assert "switchyard: it ended with OSError: no room; restarting in 1 s" in told
    one.stop()


def test_a_stop_ends_all_that_a_program_has_started(watch, capfd):
    one = watch("stays")
    [pid] = started(gather(capfd, "", 1))
    one.stop()
    wait_for(lambda: not is_there(pid))
    assert "starts again" not in capfd.readouterr().err


def test_what_a_line_means_is_said_once_a_start(watch, capfd):
    one = watch("stays", explain=lambda line: "it means this" if "started" in line else "")
    told = gather(capfd, "", 1)
    one.stop()
    out, err = capfd.readouterr()
    assert (told + out + err).count("switchyard: it means this") == 1


# Watches a program that ends by SIGTERM in its own way, and is killed.
WATCHES = """
import os, sys, time
from switchyard.cluster.processes.watched import Watched
code = (
    "import os, signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit('gentle'));"
    " print('started', os.getpid(), flush=True); time.sleep(600)"
)
Watched("it", [sys.executable, "-c", code], os.environ).start()
time.sleep(600)
"""


def test_a_killed_watcher_ends_its_program(tmp_path):
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen([sys.executable, "-c", WATCHES], stdout=log, stderr=log) as watcher,
    ):
        wait_for(lambda: started((tmp_path / "log").read_text()))
        [pid] = started((tmp_path / "log").read_text())
        watcher.kill()
        wait_for(lambda: not is_there(pid))
