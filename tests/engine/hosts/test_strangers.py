"""Whom a shared engine lets in, and whom it doesn't."""

import contextlib
import errno
import os
import socket

import pytest

from switchyard.engine.links.hosts import address, door, handshake, knock
from switchyard.engine.links.hosts.door import Door
from switchyard.engine.links.hosts.handshake import Stranger, meet_engine, meet_server
from switchyard.engine.links.hosts.knock import Hello
from switchyard.engine.links.wire import Wire
from switchyard.engine.messages import Finished
from tests.engine.hosts.house import FINGERPRINT, KEY, free_port, hello_of, take_until_text
from tests.engine.reading import take_all
from tests.scripted import ScriptedBackend, job, ticking


@pytest.mark.parametrize("at", ["unix", "tcp"])
@pytest.mark.parametrize("says", ["nothing", "garbage", "protocol", "key", "fingerprint"])
def test_strangers_are_refused_and_others_go_on(house, tmp_path, monkeypatch, at, says):
    monkeypatch.setattr(handshake, "TIMEOUT", 0.3)
    where = f"unix:{tmp_path}/e.sock" if at == "unix" else f"127.0.0.1:{free_port()}"
    shared = house(at=where, key=KEY)
    shared.open(ScriptedBackend(ticking))
    stream = shared.connect().submit([job("a", 1000)])
    with address.connect(where, 5.0) as stranger:
        if says == "garbage":
            stranger.sendall(os.urandom(1000))
        elif says == "protocol":
            stranger.sendall(hello_of(handshake.PROTOCOL + 1))
        elif says == "key":
            with pytest.raises(Stranger, match="another key"):
                meet_engine(stranger, b"x" * 32)
        elif says == "fingerprint":
            meet_engine(stranger, KEY)
            Wire(stranger).send(Hello(1, "another"))
        take_until_text(stream)
        stranger.settimeout(20)
        with contextlib.suppress(ConnectionResetError):  # what it sent was not read
            while stranger.recv(1000):
                pass
    take_until_text(stream)


@pytest.mark.parametrize("at", ["unix", "tcp"])
def test_an_event_is_not_held_back_for_a_full_packet(house, tmp_path, monkeypatch, at):
    shared = house(at=f"unix:{tmp_path}/e.sock" if at == "unix" else f"127.0.0.1:{free_port()}")
    made = []
    monkeypatch.setattr(door, "Wire", lambda one: made.append(one) or Wire(one))
    shared.open(ScriptedBackend())
    shared.connect()
    [connection] = made
    is_tcp = connection.family != socket.AF_UNIX
    assert not is_tcp or connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_no_pickle_of_a_stranger_is_read(house, monkeypatch):
    shared = house(key=KEY)
    shared.open(ScriptedBackend())
    read = []
    monkeypatch.setattr(door, "Wire", lambda *_: read.append(1))
    with address.connect(shared.at, 5.0) as stranger, pytest.raises(Stranger):
        meet_engine(stranger, b"")
    assert not read


def test_mute_strangers_take_so_many_threads_and_no_more(house, monkeypatch):
    monkeypatch.setattr(door, "MAX_STRANGERS", 2)
    shared = house()
    shared.open(ScriptedBackend())
    with contextlib.ExitStack() as stack:
        mute = [stack.enter_context(address.connect(shared.at, 5.0)) for _ in range(2)]
        for one in mute:
            assert one.recv(44)  # it has a thread
        third = stack.enter_context(address.connect(shared.at, 5.0))
        third.settimeout(20)
        assert third.recv(44) == b""


def test_a_look_at_an_engine_is_no_server_there(house, caplog):
    caplog.set_level("INFO")
    shared = house()
    host = shared.open(ScriptedBackend())
    wire, pid = knock.knock(shared.at, b"", FINGERPRINT, is_look=True)
    with wire, pytest.raises(EOFError):  # nothing comes but the end
        wire.receive(20)
    assert pid == os.getpid() and not host._front_ends
    assert "shares the engine" not in caplog.text


def test_strangers_that_have_been_refused_leave_room_for_others(house, monkeypatch):
    monkeypatch.setattr(door, "MAX_STRANGERS", 2)
    shared = house(key=KEY)
    shared.open(ScriptedBackend())
    for refused in (b"", b"x" * 32, b"another", b""):
        with address.connect(shared.at, 5.0) as stranger, contextlib.suppress(Stranger, OSError):
            meet_engine(stranger, refused)
        with address.connect(shared.at, 5.0) as stranger, contextlib.suppress(Stranger, OSError):
            meet_engine(stranger, KEY)
            wire = Wire(stranger)
            wire.send(Hello(1, "another"))
            wire.receive_one(20)
    assert isinstance(take_all(shared.connect().submit([job("a")]))[-1], Finished)


class Exhausted(socket.socket):
    """A listener that has no file descriptor for the first connection."""

    has_failed = False

    def accept(self):
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_connection_that_can_not_be_accepted_keeps_no_other_out(house, monkeypatch, caplog):
    listen = address.listen
    monkeypatch.setattr(address, "listen", lambda at: Exhausted(fileno=listen(at).detach()))
    shared = house()
    shared.open(ScriptedBackend())
    assert isinstance(take_all(shared.connect().submit([job("a")]))[-1], Finished)
    assert "no connection can be accepted: [Errno 24] Too many open files" in caplog.text


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


def test_a_stranger_with_the_key_that_says_no_more_is_let_go(opened, monkeypatch, at):
    monkeypatch.setattr(door, "TIMEOUT", 0.2)
    opened(at)
    with address.connect(at, 5.0) as mute:
        meet_engine(mute, b"")
        mute.settimeout(20)
        assert mute.recv(1) == b""


def test_a_closed_door_leaves_no_socket_behind(opened, tmp_path, at, caplog):
    opened(at).close()
    assert not list(tmp_path.iterdir()) and not caplog.messages


def test_a_stranger_in_an_engines_place_does_not_end_a_model_that_was_loaded(house):
    shared = house(key=KEY)
    host = shared.open(ScriptedBackend())
    model = shared.connect()
    assert host.close(timeout=20)
    with address.listen(shared.at) as stranger:
        stranger.settimeout(20)
        for _ in range(2):  # it comes again
            connection, _ = stranger.accept()
            with connection, pytest.raises(Stranger):
                meet_server(connection, b"x" * 32)
    shared.open(ScriptedBackend())
    assert model.wait_until_loaded(20)
    assert isinstance(take_all(model.submit([job("a")]))[-1], Finished)
