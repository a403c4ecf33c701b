"""Other users of the machine at a shared engine's Unix socket: real processes of a real user."""

import contextlib
import os
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading

import pytest

from switchyard.engine.errors import ModelError
from switchyard.engine.links.hosts import knock
from tests.engine.hosts.house import FINGERPRINT, KEY
from tests.engine.reading import is_served
from tests.scripted import ScriptedBackend

USER = "65533"
SCRIPT = pathlib.Path(__file__).with_name("another_user.py")
STAGES = ["greeting", "hello", "end"]


class Process:
    def __init__(self, before, *arguments):
        command = [*before, sys.executable, str(SCRIPT), *map(str, arguments)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.lines = queue.SimpleQueue()
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        with self.process.stdout as lines:
            for line in lines:
                self.lines.put(line.rstrip())

    def line(self):
        return self.lines.get(timeout=20)

    def end(self):
        self.process.stdin.close()
        self.process.wait(20)
        self.reader.join(20)


def works(before):
    try:
        subprocess.run([*before, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@pytest.fixture
def start():
    with contextlib.ExitStack() as stack:

        def make(before, *arguments):
            one = Process(before, *arguments)
            stack.callback(one.end)
            return one

        yield make


@pytest.fixture
def other(start):
    """Starts a process of another user."""
    before = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if not works(before):
        pytest.skip("only root starts processes of another user")
    return lambda *arguments: start(before, USER, *arguments)


@pytest.fixture
def public():
    """The path of a socket that every user may make, as in /tmp."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        os.chmod(directory, 0o1777)
        yield f"{directory}/engine.sock"


def says(key):
    return (
        "a different key|not Switchyard"
        if key
        else f"the process at the other end belongs to user {USER}"
    )


@pytest.mark.parametrize("key", [b"", KEY], ids=["no key", "a key"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_user_who_listens_runs_no_code(house, other, public, tmp_path, stage, key):
    marker = tmp_path / "ran"
    stranger = other("listen", public, stage, marker)
    assert stranger.line() == "listens"
    model = house(at=f"unix:{public}", key=key).connect(is_waited_for=False)
    assert not model.wait_until_loaded(20)
    with pytest.raises(ModelError, match=says(key)):
        raise model.error
    assert stranger.line() == "a server came" and not marker.exists()


@pytest.mark.parametrize("key", [b"", KEY], ids=["no key", "a key"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_user_who_connects_runs_no_code(house, other, public, tmp_path, caplog, stage, key):
    """Even where its operator has opened the socket to all."""
    marker = tmp_path / "ran"
    shared = house(at=f"unix:{public}", key=key)
    shared.open(ScriptedBackend())
    os.chmod(public, 0o666)
    came = other("connect", public, stage, marker).line()
    assert came == "0 bytes came" or key  # it was asked for its user before anything else
    assert is_served(shared.connect())
    assert not marker.exists()
    assert key or f"a connection was refused: {says(key)}" in caplog.text


def test_a_server_meets_the_engine_of_another_user_by_the_key(other, public):
    assert other("engine", public, KEY.hex()).line() == "listens"
    wire, _ = knock.knock(f"unix:{public}", KEY, FINGERPRINT)
    with wire:
        assert wire.receive_one(20) == f"for {os.getpid()}"


def test_an_engine_meets_the_server_of_another_user_by_the_key(house, other, public):
    shared = house(at=f"unix:{public}", key=KEY)
    host = shared.open(ScriptedBackend())
    assert shared.connect().wait_until_loaded(20) and host.is_loaded
    os.chmod(public, 0o666)
    assert other("server", public, KEY.hex()).line().startswith("[Loaded(")
    assert other("server", public, (b"x" * 32).hex()).line() == "the engine has a different key"


def test_a_user_in_an_engines_place_is_waited_out(house, other, public, tmp_path, caplog):
    """A model that was loaded does not end."""
    marker = tmp_path / "ran"
    shared = house(at=f"unix:{public}")
    host = shared.open(ScriptedBackend())
    model = shared.connect()
    assert host.close(timeout=20)
    stranger = other("listen", public, "end", marker)
    assert [stranger.line() for _ in range(3)] == ["listens", *["a server came"] * 2]
    assert model.state == "recovering" and says(b"") in caplog.text
    stranger.end()
    shared.open(ScriptedBackend())
    assert is_served(model)
    assert not marker.exists()


def test_a_user_that_a_namespace_does_not_know_is_not_its_own(house, start, public):
    """There all unknown users have one number, and so has the process itself."""
    before = ["unshare", "--user"]
    if not works(before):
        pytest.skip("no user namespaces here")
    shared = house(at=f"unix:{public}")
    shared.open(ScriptedBackend())
    os.chmod(public, 0o666)
    assert "other end belongs to an unknown user" in start(before, "", "server", public, "").line()
