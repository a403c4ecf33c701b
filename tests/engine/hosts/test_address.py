"""The address of a shared engine and its key, each alone: real sockets."""

import contextlib
import pathlib
import socket

import pytest

from switchyard.engine import open_engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.links.hosts import address, key
from switchyard.engine.links.hosts.handshake import meet_engine, meet_server
from switchyard.engine.links.hosts.peer import Stranger
from tests.engine.hosts.house import KEY, free_port


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("unix:relative", "an absolute path"),
        ("/run/engine.sock", "must be unix:PATH or HOST:PORT"),
        ("127.0.0.1", "must be unix:PATH or HOST:PORT"),
        ("host:port", "must be unix:PATH or HOST:PORT"),
        (":7000", "must be unix:PATH or HOST:PORT"),
        ("127.0.0.1:0", "must be unix:PATH or HOST:PORT"),
        ("127.0.0.1:65536", "must be unix:PATH or HOST:PORT"),
        ("0.0.0.0:7000", "open to all networks"),
        ("[::]:7000", "open to all networks"),
        ("unix:/nowhere/engine.sock", "can't listen"),
        ("no.such.host.invalid:7000", "can't listen"),
    ],
)
def test_what_is_no_place_for_an_engine_is_refused(at, says):
    with pytest.raises(ModelError, match=says) as caught:
        address.listen(at)
    assert caught.value.param in ("at", None)
    address.check("127.0.0.1:65535")


def test_the_socket_of_one_that_was_killed_is_taken_over_and_that_of_another_is_not(tmp_path):
    at = f"unix:{tmp_path}/engine.sock"
    path = pathlib.Path(tmp_path, "engine.sock")
    first = address.listen(at)
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ModelError, match="in use"):
        address.listen(at)
    first.close()
    second = address.listen(at)
    address.release(second)
    assert not path.exists()
    path.write_text("a file of somebody's")
    with pytest.raises(ModelError, match="in use"):
        address.listen(at)
    assert path.read_text() == "a file of somebody's"


def test_a_key_is_long_and_for_its_owner(tmp_path):
    path = tmp_path / "engine.key"
    with pytest.raises(ModelError, match="No such file"):
        key.read_key(str(path))
    path.write_bytes(KEY + b"\n")
    path.chmod(0o604)
    with pytest.raises(ModelError, match="open to others"):
        key.read_key(str(path))
    path.chmod(0o640)
    assert key.read_key(str(path)) == KEY and key.read_key(None) == b""
    path.write_bytes(b"k" * 32)
    assert key.read_key(str(path)) == b"k" * 32
    path.write_bytes(b"k" * 31 + b"\n")
    with pytest.raises(ModelError, match="has 31 bytes, but must have at least 32"):
        key.read_key(str(path))


def test_a_connection_waits_without_a_limit_and_sends_at_once(at):
    for where in (at, f"127.0.0.1:{free_port()}"):
        with address.listen(where), address.connect(where, 5.0) as one:
            assert one.gettimeout() is None
            if address.is_tcp(where):
                assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_connection_that_no_engine_takes_is_given_up(monkeypatch):
    monkeypatch.setattr(address, "BACKLOG", 0)
    where = f"127.0.0.1:{free_port()}"
    with address.listen(where), contextlib.ExitStack() as stack:
        with pytest.raises(TimeoutError) as told:
            for _ in range(10):
                stack.enter_context(address.connect(where, 0.2))
        assert told.value.errno is None  # the system's own, of minutes, has a number


def test_an_engine_that_is_too_busy_to_accept_keeps_its_address(at, monkeypatch):
    monkeypatch.setattr(address, "BACKLOG", 0)
    with address.listen(at), contextlib.ExitStack() as stack:
        with contextlib.suppress(BlockingIOError):
            for _ in range(10):
                one = stack.enter_context(socket.socket(socket.AF_UNIX))
                one.setblocking(False)
                one.connect(at.removeprefix("unix:"))
        with pytest.raises(ModelError, match="in use"):
            address.listen(at)


def test_a_directory_that_all_users_may_write_is_refused_unless_it_is_sticky(model_path, tmp_path):
    directory = tmp_path / "open"
    directory.mkdir()
    at = f"unix:{directory}/engine.sock"
    config = ModelConfig(model_path, "m", link="socket", at=(at,))
    directory.chmod(0o777)
    for refused in (address.listen, lambda _: open_engine(config)):
        with pytest.raises(ModelError, match=f"at: {at} is .* all users can write to: chmod o-w"):
            refused(at)
    directory.chmod(0o1777)
    with address.listen(at):
        address.connect(at, 5.0).close()
        directory.chmod(0o777)  # later
        with pytest.raises(OSError, match="all users can write to"):
            address.connect(at, 5.0)


@pytest.mark.parametrize("meet", [meet_engine, meet_server])
def test_no_end_meets_another_over_tcp_without_a_key(meet):
    where = f"127.0.0.1:{free_port()}"
    with address.listen(where) as listener, address.connect(where, 5.0) as one:
        connection, _ = listener.accept()
        with connection, pytest.raises(Stranger, match="TCP needs a key: set engine_key_file"):
            meet(one, b"", None)
