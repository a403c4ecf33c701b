"""The supervision of one engine, with real processes that speak as an engine does."""

import os
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from switchyard.cluster.processes.engine_process import EngineFailed, EngineProcess, Place
from tests.conftest import ROOT, wait_for
from tests.live.conftest import free_port

ENGINE = """
import contextlib, os, signal, socket, sys, time
way, at = sys.argv[1:]
place = os.environ["NOTIFY_SOCKET"]

def tell(*lines):
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.sendto("\\n".join(lines).encode(), place)

def end(*_):
    tell("STOPPING=1", "EXTEND_TIMEOUT_USEC=60000000")
    sys.exit("ended" if way == "fails" else 0)

signal.signal(signal.SIGTERM, signal.SIG_IGN if way == "deaf" else end)
if way == "mute":
    time.sleep(600)
host, port = at.rsplit(":", 1)
try:
    listener = socket.create_server((host, int(port)))
except OSError as reason:
    sys.exit(f"switchyard: at: can't listen on {at}: {reason.strerror}")
if way == "unloadable":
    print("switchyard: there is no model", "INFO a line of its log", sep="\\n", file=sys.stderr)
    sys.exit(3)
tell("STATUS=loading", "EXTEND_TIMEOUT_USEC=1000000")
if way == "frozen in its load":
    os.kill(os.getpid(), signal.SIGSTOP)
tell("READY=1", "STATUS=ready")
if way == "silent":
    time.sleep(600)
if way == "ends":
    sys.exit("the device is lost")
while True:
    time.sleep(0.05)
    tell("WATCHDOG=1")
"""


@pytest.fixture(scope="module")
def ports():
    return sorted(free_port() for _ in range(5))


@pytest.fixture
def make(tmp_path, ports):
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    made = []

    def make(way, ports=ports, **times):
        times = {"silence": 1.0, "first_sign": 30.0, **times}
        command = [sys.executable, str(script), way]
        made.append(EngineProcess(command, "127.0.0.1", ports, os.environ, **times))
        return made[-1]

    yield make
    for one in made:
        one.end(0.0)


def is_there(pid):
    """Whether the process lives; a zombie doesn't."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_ready_engine_listens_and_ends_gently(make):
    one = make("well")
    one.start()
    assert (one.status, one.fault) == ("ready", "")
    host, _, port = one.at.rpartition(":")
    socket.create_connection((host, int(port))).close()
    assert one.end(30.0) and one.is_over and one.fault == ""


@pytest.mark.parametrize(
    ("way", "times", "message"),
    [
        ("unloadable", {}, "the engine ended with status 3: switchyard: there is no model"),
        ("mute", {"first_sign": 0.5}, "the engine gave no sign of life"),
        ("frozen in its load", {}, "the engine gave no sign of life"),
    ],
)
def test_an_engine_that_never_serves_is_a_fault_of_one_line_and_leaves_no_process(
    make, ports, way, times, message
):
    one = make(way, **times)
    with pytest.raises(EngineFailed, match=f"^{message}$"):
        one.start()
    assert not is_there(one.pid)
    for port in ports:
        Place("127.0.0.1", port).release()


@pytest.mark.parametrize(
    ("way", "fault"),
    [
        ("silent", "the engine gave no sign of life"),
        ("ends", "the engine ended with status 1: the device is lost"),
    ],
)
def test_the_end_of_a_ready_engine_is_told_once(make, way, fault):
    told = threading.Semaphore(0)
    one = make(way)
    start_child = one._start_child

    def start_late(notify):
        """The engine's signs are read after its end, if it ends by itself."""
        child = start_child(notify)
        if way == "ends":
            child.wait(30)
        return child

    one._start_child = start_late
    one.start(told.release)
    assert told.acquire(timeout=30)
    assert one.fault == fault and not is_there(one.pid)
    assert not told.acquire(blocking=False)


def test_an_end_that_is_asked_for_is_no_fault_and_waits_no_longer_than_its_grace(make):
    told = threading.Event()
    one = make("deaf")
    one.start(told.set)
    assert not one.end(0.2)
    assert not is_there(one.pid) and one.fault == "" and not told.is_set()


def test_two_engines_of_a_machine_never_get_one_port_and_a_strangers_is_passed_by(make, ports):
    with socket.create_server(("127.0.0.1", ports[1])):
        three = [make("well") for _ in range(3)]
        starts = [threading.Thread(target=one.start) for one in three]
        for start in starts:
            start.start()
        for start in starts:
            start.join(60)
    assert Place.taken("127.0.0.1") == sorted(one.at for one in three)
    assert Place.taken("127.0.0.2") == []
    found = sorted(int(one.at.rpartition(":")[2]) for one in three)
    assert len(set(found)) == 3 and set(found) < {*ports} - {ports[1]}, found


def test_an_engine_rarely_gets_the_address_of_the_last_one(make):
    """Servers would drop both: they hear of the loss after the new one has started."""
    found = set()
    for _ in range(10):
        one = make("well")
        one.start()
        found.add(one.at)
        assert one.end(30.0)
    assert len(found) > 1


def test_without_a_free_port_the_range_is_named(make, ports):
    with socket.create_server(("127.0.0.1", ports[0])), pytest.raises(EngineFailed) as caught:
        make("well", ports[:1]).start()
    assert str(caught.value) == f"no port from {ports[0]} to {ports[0]} is free"


def test_a_port_is_free_again_after_the_end(make, ports):
    first = make("well", ports[:1])
    first.start()
    with pytest.raises(EngineFailed):
        make("well", ports[:1]).start()
    with pytest.raises(OSError):
        Place("127.0.0.1", ports[0])
    assert first.end(30.0)
    make("well", ports[:1]).start()


def test_an_engine_dies_with_its_supervisor(tmp_path, ports):
    (tmp_path / "engine.py").write_text(ENGINE)
    code = f"""
        import os, sys, time
        from switchyard.cluster.processes.engine_process import EngineProcess
        command = [sys.executable, {str(tmp_path / "engine.py")!r}, "well"]
        one = EngineProcess(command, "127.0.0.1", {ports}, os.environ)
        one.start()
        print(one.pid, flush=True)
        time.sleep(600)
    """
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with parent:
        pid = int(parent.stdout.readline())
        assert is_there(pid)
        parent.kill()
    wait_for(lambda: not is_there(pid))
