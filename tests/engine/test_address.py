"""The address of a shared engine and the handshake there, each alone: real sockets."""

import contextlib
import socket

import pytest

from switchyard.engine.errors import ModelError
from switchyard.engine.links.hosts import address, door, handshake
from switchyard.engine.links.hosts.door import Door
from switchyard.engine.links.hosts.handshake import meet_engine, meet_server


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def at(tmp_path):
    return f"unix:{tmp_path}/engine.sock"


@pytest.fixture
def opened():
    """A door, and the connections that it admits."""
    with contextlib.ExitStack() as stack:

        def make(at, key=b""):
            one, admitted = Door(at, key, "fp_1", lambda *one: admitted.append(one)), []
            one.open()
            stack.callback(one.close)
            return one

        yield make


def test_a_connection_waits_without_a_limit_and_sends_at_once(at):
    for where in (at, f"127.0.0.1:{free_port()}"):
        with address.listen(where), address.connect(where, 5.0) as one:
            assert one.gettimeout() is None
            if address.is_tcp(where):
                assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


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


def test_a_closed_door_leaves_no_socket_behind(opened, tmp_path, at):
    opened(at).close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("meet", [meet_engine, meet_server])
def test_a_handshake_whose_time_is_over_ends_in_order(meet, monkeypatch):
    monkeypatch.setattr(handshake, "TIMEOUT", 0.0)
    here, there = socket.socketpair()
    with here, there, pytest.raises(TimeoutError):
        meet(here, b"")


def test_a_stranger_with_the_key_that_says_no_more_is_let_go(opened, monkeypatch, at):
    monkeypatch.setattr(door, "TIMEOUT", 0.2)
    opened(at)
    with address.connect(at, 5.0) as mute:
        meet_engine(mute, b"")
        mute.settimeout(20)
        assert mute.recv(1) == b""
