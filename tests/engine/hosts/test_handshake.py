"""The handshake of a server and a shared engine, alone, and the protocol that it names."""

import dataclasses
import hashlib
import socket
import threading

import pytest

from switchyard.engine import errors, messages, sampling, stats
from switchyard.engine import job as jobs
from switchyard.engine.links.hosts import handshake, knock
from switchyard.engine.links.hosts.handshake import Stranger, meet_engine, meet_server
from tests.engine.hosts.house import KEY, hello_of


def test_a_server_says_what_an_engine_of_another_version_speaks():
    here, there = socket.socketpair()
    with here, there:
        there.sendall(hello_of(handshake.PROTOCOL + 1))
        with pytest.raises(Stranger, match="protocol 3, and this one 2: server and engine"):
            meet_engine(here, KEY)


def test_a_server_gives_its_proof_to_none_but_an_engine_with_the_key():
    """One that echoes what it is sent has the same proof, by another role."""
    here, there = socket.socketpair()
    with here, there:

        def echo():
            for size in (44, 32):
                there.sendall(there.recv(size))

        thread = threading.Thread(target=echo)
        thread.start()
        with pytest.raises(Stranger, match="another key"):
            meet_engine(here, KEY)
        thread.join(20)


@pytest.mark.parametrize("meet", [meet_engine, meet_server])
def test_a_handshake_whose_time_is_over_ends_in_order(meet, monkeypatch):
    monkeypatch.setattr(handshake, "TIMEOUT", 0.0)
    here, there = socket.socketpair()
    with here, there, pytest.raises(TimeoutError):
        meet(here, b"")


def test_a_connection_is_waited_for_without_end_behind_its_handshake():
    here, there = socket.socketpair()
    with here, there:
        thread = threading.Thread(target=meet_server, args=(there, KEY))
        thread.start()
        meet_engine(here, KEY)
        thread.join(20)
        assert here.gettimeout() is None and there.gettimeout() is None


def test_an_engine_refuses_a_server_with_another_key():
    here, there = socket.socketpair()
    with here, there:
        there.sendall(hello_of(handshake.PROTOCOL) + bytes(32))
        with pytest.raises(Stranger, match="the server has another key"):
            meet_server(here, KEY)


def test_another_service_is_no_switchyard():
    here, there = socket.socketpair()
    with here, there:
        there.sendall(handshake._HELLO.pack(b"another", handshake.PROTOCOL, bytes(32)))
        with pytest.raises(Stranger, match="no Switchyard"):
            meet_server(here, KEY)


class Trickle(socket.socket):
    """A connection whose bytes come a few at a time. `left`: the time that each read had."""

    def recv(self, size):
        self.left = [*getattr(self, "left", []), self.gettimeout()]
        return super().recv(min(size, 10))


def test_a_handshake_in_small_parts_succeeds_within_one_time_limit():
    here, there = socket.socketpair()
    with Trickle(fileno=here.detach()) as trickle, there:
        _, _, other = handshake._HELLO.unpack(sent_behind(there, trickle))
        assert there.recv(32) == handshake._proof(KEY, b"engine", other, bytes(32))
        assert len(trickle.left) == 9
        assert trickle.left == sorted(set(trickle.left), reverse=True)


def sent_behind(there, here):
    """The engine's greeting; greeting and proof of the server lie there together."""
    own = bytes(32)

    def answer():
        greeting = there.recv(handshake._HELLO.size)
        *_, other = handshake._HELLO.unpack(greeting)
        proof = handshake._proof(KEY, b"server", own, other)
        there.sendall(handshake._HELLO.pack(b"switchyard", handshake.PROTOCOL, own) + proof)
        greetings.append(greeting)

    greetings = []
    thread = threading.Thread(target=answer)
    thread.start()
    meet_server(here, KEY)
    thread.join(20)
    return greetings[0]


def test_another_shape_of_what_crosses_is_another_protocol():
    """A server and an engine of two versions would misread each other: if this fails, raise
    `PROTOCOL`, and put what the test says into DIGEST.
    """
    found = [
        f"{module.__name__}.{name}({[(f.name, str(f.type)) for f in dataclasses.fields(one)]})"
        for module in (messages, jobs, sampling, stats, knock)
        for name, one in sorted(vars(module).items())
        if dataclasses.is_dataclass(one) and one.__module__ == module.__name__
    ]
    found += sorted(name for name, one in vars(errors).items() if isinstance(one, type))
    digest = hashlib.sha256(repr(sorted(found)).encode()).hexdigest()[:12]
    assert (handshake.PROTOCOL, digest) == (2, DIGEST)


DIGEST = "fd3c1be09d64"
