"""Whom a shared engine lets in, and whom it doesn't."""

import contextlib
import errno
import os
import queue
import socket
import threading

import pytest

from switchyard.engine.links.hosts import address, door, handshake, knock
from switchyard.engine.links.hosts.door import Door
from switchyard.engine.links.hosts.handshake import meet_engine, meet_server
from switchyard.engine.links.hosts.introduction import Hello, Welcome
from switchyard.engine.links.hosts.peer import Stranger
from switchyard.engine.messages import Finished
from tests.engine.hosts.house import FINGERPRINT, KEY, free_port, hello_of
from tests.engine.reading import is_served, take_all, take_until_text, wait_for_state
from tests.scripted import Gate, ScriptedBackend, count, job, ticking


@pytest.fixture(params=["unix", "tcp"])
def where(request, at):
    """Addresses of both kinds."""
    return at if request.param == "unix" else f"127.0.0.1:{free_port()}"


@pytest.mark.parametrize("says", ["nothing", "garbage", "protocol", "key", "fingerprint"])
def test_strangers_are_refused_and_others_go_on(house, where, monkeypatch, says):
    monkeypatch.setattr(handshake, "TIMEOUT", 0.3)
    shared = house(at=where, key=KEY)
    shared.open(ScriptedBackend(ticking))
    stream = shared.connect().submit([job("a", 1000)])
    with address.connect(where, 5.0) as stranger:
        if says == "garbage":
            stranger.sendall(os.urandom(1000))
        elif says == "protocol":
            stranger.sendall(hello_of(handshake.PROTOCOL + 1))
        elif says == "key":
            with pytest.raises(Stranger, match="a different key"):
                meet_engine(stranger, b"x" * 32, Hello(1, FINGERPRINT))
        elif says == "fingerprint":
            welcome, _ = meet_engine(stranger, KEY, Hello(1, "another"))
            assert "this server's has another" in welcome.refusal
        take_until_text(stream)
        stranger.settimeout(20)
        with contextlib.suppress(ConnectionResetError):  # what it sent was not read
            while stranger.recv(1000):
                pass
    take_until_text(stream)


def test_an_event_is_not_held_back_for_a_full_packet(opened, where):
    admitted = opened(where, KEY)
    wire, _ = knock.knock(where, KEY, FINGERPRINT)
    with wire, admitted.get(timeout=20)[0] as connection:
        is_tcp = connection.family != socket.AF_UNIX
        assert not is_tcp or connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_mute_strangers_keep_no_server_out(house, where, monkeypatch, caplog):
    """They have the door's places, and each further connection takes that of the oldest."""
    monkeypatch.setattr(door, "MAX_STRANGERS", 2)
    monkeypatch.setattr(handshake, "TIMEOUT", 600.0)
    shared = house(at=where, key=KEY)
    host = shared.open(ScriptedBackend())
    with contextlib.ExitStack() as stack:
        mute = []
        for _ in range(3):
            mute.append(stack.enter_context(address.connect(where, 20.0)))
            mute[-1].settimeout(20)
            assert len(mute[-1].recv(44)) == 44  # it has a thread
        assert mute[0].recv(44) == b""
        assert len(host._door._strangers) == 2
        assert is_served(shared.connect())
        assert mute[1].recv(44) == b""
        mute[2].setblocking(False)
        with pytest.raises(BlockingIOError):  # it is the only one now
            mute[2].recv(44)
    for one in threading.enumerate():
        if one.name == "stranger":
            one.join(20)
    assert (
        caplog.text.count("it had not completed the handshake when other connections arrived") == 2
    )


def test_a_look_at_an_engine_is_no_server_there(house, caplog):
    caplog.set_level("INFO")
    shared = house()
    host = shared.open(ScriptedBackend())
    assert knock.look(shared.at, b"", FINGERPRINT).pid == os.getpid()
    with pytest.raises(Stranger, match="both need the same files"):
        knock.look(shared.at, b"", "another")
    assert not host._front_ends and "has connected" not in caplog.text


def test_an_engine_is_ready_from_its_load_until_its_end_begins(house):
    gate, backend = Gate(), ScriptedBackend(count)
    backend.opening.clear()
    shared = house()
    host = shared.open(backend)
    assert not knock.look(shared.at, b"").is_ready
    backend.opening.set()
    model = shared.connect()
    assert knock.look(shared.at, b"").is_ready
    backend._gate = gate
    stream = model.submit([job("a", 3)])
    gate.wait_until_held()
    with closing_beside(host):
        wait_for_state(model, "recovering")
        assert not knock.look(shared.at, b"").is_ready
        gate.open()
        assert isinstance(take_all(stream)[-1], Finished)


@contextlib.contextmanager
def closing_beside(host):
    """Drains the engine on a thread."""
    thread = threading.Thread(target=lambda: host.close(drain=20, timeout=20))
    thread.start()
    yield
    thread.join(20)


def test_strangers_that_have_been_refused_leave_room_for_others(house, monkeypatch):
    monkeypatch.setattr(door, "MAX_STRANGERS", 2)
    shared = house(key=KEY)
    shared.open(ScriptedBackend())
    for refused in (b"", b"x" * 32, b"another", b""):
        with address.connect(shared.at, 5.0) as stranger, contextlib.suppress(Stranger, OSError):
            meet_engine(stranger, refused, Hello(1, FINGERPRINT))
        with address.connect(shared.at, 5.0) as stranger:
            assert meet_engine(stranger, KEY, Hello(1, "another"))[0].refusal
    assert is_served(shared.connect())


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
    assert is_served(shared.connect())
    assert "no connection can be accepted: [Errno 24] Too many open files" in caplog.text


@pytest.fixture
def opened():
    """Opens a door; returns the queue of what it admits."""
    with contextlib.ExitStack() as stack:

        def make(at, key=b""):
            admitted = queue.SimpleQueue()
            one = Door(at, key, FINGERPRINT, lambda *one: admitted.put(one), lambda: True)
            one.open()
            stack.callback(one.close)
            return admitted

        yield make


def test_a_closed_door_leaves_no_socket_behind(tmp_path, at, caplog):
    one = Door(at, b"", FINGERPRINT, lambda *_: None, lambda: True)
    one.open()
    one.close()
    assert not list(tmp_path.iterdir()) and not caplog.messages


def test_a_stranger_in_an_engines_place_does_not_end_a_model_that_was_loaded(house):
    shared = house(key=KEY)
    model = shared.serve()
    [host] = shared.hosts
    assert host.close(timeout=20)
    with address.listen(shared.at) as stranger:
        stranger.settimeout(20)
        for _ in range(2):  # it comes again
            connection, _ = stranger.accept()
            with connection, pytest.raises(Stranger):
                meet_server(connection, b"x" * 32, lambda _: Welcome(7))
    shared.open(ScriptedBackend())
    assert model.wait_until_loaded(20)
    assert is_served(model)
