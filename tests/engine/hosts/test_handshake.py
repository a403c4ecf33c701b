"""The handshake of a server and a shared engine, alone, and the protocol that it names."""

import contextlib
import dataclasses
import hashlib
import json
import socket
import threading

import pytest

from switchyard.engine import errors, messages, sampling, stats
from switchyard.engine import job as jobs
from switchyard.engine.links.hosts import handshake, introduction
from switchyard.engine.links.hosts.handshake import meet_engine, meet_server
from switchyard.engine.links.hosts.introduction import Hello, Welcome
from switchyard.engine.links.hosts.peer import Stranger
from switchyard.engine.links.wire import Wire
from tests.engine.hosts.house import FINGERPRINT, KEY, hello_of

HELLO, WELCOME = Hello(1, FINGERPRINT), Welcome(2)


@contextlib.contextmanager
def beside(run):
    """Runs `run` on a thread, and raises what it raises."""
    problems = []

    def target():
        try:
            run()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=target)
    thread.start()
    try:
        yield
    finally:
        thread.join(20)
    for problem in problems:
        raise problem


def met(key, here, there):
    """What both ends have of a handshake: that of the server first."""
    got = []
    with beside(lambda: got.append(meet_server(there, key, lambda _: WELCOME))):
        welcome, seals = meet_engine(here, key, HELLO)
    [(hello, engine_seals)] = got
    assert (hello, welcome) == (HELLO, WELCOME)
    return seals, engine_seals


def meet_as_server(connection, key):
    return meet_engine(connection, key, HELLO)


def meet_as_engine(connection, key):
    return meet_server(connection, key, lambda _: WELCOME)


def introduced(data, nonces, key=KEY, purpose=b"hello\0"):
    proof = handshake._hmac(key, purpose, nonces, data)
    return len(data).to_bytes(2, "big") + proof + data


def test_a_server_says_what_an_engine_of_another_version_speaks(ends):
    here, there = ends
    there.sendall(hello_of(handshake.PROTOCOL + 1))
    with pytest.raises(Stranger, match="protocol 6, but this end uses 5: server and"):
        meet_as_server(here, KEY)


def test_a_server_takes_no_engine_that_echoes_its_own_proof(ends):
    here, there = ends

    def echo():
        there.sendall(there.recv(44))
        there.sendall(there.recv(4096))

    with beside(echo), pytest.raises(Stranger, match="a different key"):
        meet_as_server(here, KEY)


@pytest.mark.parametrize("meet", [meet_as_server, meet_as_engine])
def test_a_handshake_whose_time_is_over_ends_in_order(meet, ends, monkeypatch):
    monkeypatch.setattr(handshake, "TIMEOUT", 0.0)
    with pytest.raises(TimeoutError):
        meet(ends[0], b"")


def test_a_connection_is_waited_for_without_end_after_its_handshake(ends):
    here, there = ends
    met(KEY, here, there)
    assert here.gettimeout() is None and there.gettimeout() is None


def test_an_engine_refuses_a_server_with_another_key_and_proves_nothing_to_it(ends):
    here, there = ends
    there.sendall(hello_of(handshake.PROTOCOL) + introduced(b"{}", bytes(64), b"x" * 32))
    with pytest.raises(Stranger, match="the server has a different key"):
        meet_as_engine(here, KEY)
    assert there.recv(4096)[44 + 2 :].startswith(bytes(32) + b"{")


def test_another_service_is_no_switchyard(ends):
    here, there = ends
    there.sendall(handshake._GREETING.pack(b"another", handshake.PROTOCOL, bytes(32)))
    with pytest.raises(Stranger, match="not Switchyard"):
        meet_as_engine(here, KEY)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a JSON object"),
        (b"\x80\x05N.", "not a JSON object"),
        (b"[" * 4096, "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b"{}", "incomplete"),
        (b'{"pid": 1}', "incomplete"),
        (b'{"pid": true, "fingerprint": "fp_1"}', "the wrong type in pid"),
        (b'{"pid": 1, "fingerprint": {}}', "the wrong type in fingerprint"),
        (b" " * 4097, "too long: 4097 bytes"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_hello_that_is_none_is_refused(ends, data, says):
    """From a server that has the key."""
    here, there = ends

    def come():
        nonces = bytes(32) + there.recv(44)[-32:]  # its own
        there.sendall(hello_of(handshake.PROTOCOL, bytes(32)) + introduced(data, nonces))

    with beside(come), pytest.raises(Stranger, match=says):
        meet_as_engine(here, KEY)


def test_a_hello_of_a_later_version_may_have_more_fields():
    data = json.dumps({"pid": 1, "fingerprint": FINGERPRINT, "models": [1]}).encode()
    assert introduction.from_json(Hello, data) == HELLO


class Trickle(socket.socket):
    """A connection whose bytes come a few at a time. `left`: the time that each read had."""

    def recv(self, size):
        self.left = [*getattr(self, "left", []), self.gettimeout()]
        return super().recv(min(size, 10))


def test_a_handshake_in_small_parts_succeeds_within_one_time_limit(ends):
    here, there = ends
    with Trickle(fileno=here.detach()) as trickle:
        with beside(lambda: meet_as_engine(trickle, KEY)):
            assert meet_as_server(there, KEY)[0] == WELCOME
        assert len(trickle.left) > 14
        assert trickle.left == sorted(set(trickle.left), reverse=True)


@pytest.mark.parametrize("forge", ["added", "changed", "repeated", "left out", "turned round"])
def test_a_relay_between_two_ends_with_the_key_adds_no_message(ends, forge, caplog):
    """It has passed on all of a handshake, and knows all that has crossed."""
    here, there = ends
    seals, engine_seals = met(KEY, here, there)
    with Wire(here, seals) as server, Wire(there, engine_seals) as engine:
        engine.send("first")
        engine.send("second")
        first, second = (here.recv(4 + 32 + size) for size in (20, 21))
        sent = {
            "added": b"\0\0\0\4" + bytes(32) + b"\x80\x04N.",
            "changed": first.replace(b"first", b"other"),
            "repeated": first + first,
            "left out": second,
        }
        if forge == "turned round":
            server.send("first")
            there.sendall(there.recv(4096))
        else:
            there.sendall(sent[forge])
        with pytest.raises(OSError, match="lacks the other end's seal"):
            server.receive(20)
    assert "closing the connection" in caplog.text


def test_two_connections_with_one_key_have_different_seals():
    found = set()
    for _ in range(2):
        here, there = socket.socketpair()
        with here, there:
            for seals in met(KEY, here, there):
                found |= {seals.sent.of(b"x"), seals.received.of(b"x")}
    assert len(found) == 4


def test_another_shape_of_what_crosses_may_be_another_protocol():
    """If this fails, put what the test says into DIGEST. A new field with a default, behind which
    nothing changes, needs no more: `Wire` leaves it out. After any other change a server and an
    engine of two versions would misread each other: raise `PROTOCOL`, too.
    """
    found = [
        f"{module.__name__}.{name}({[(f.name, str(f.type)) for f in dataclasses.fields(one)]})"
        for module in (messages, jobs, sampling, stats, introduction)
        for name, one in sorted(vars(module).items())
        if dataclasses.is_dataclass(one) and one.__module__ == module.__name__
    ]
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    found += sorted(one.__name__ for one in kinds if one is not errors.SwitchyardError)
    digest = hashlib.sha256(repr(sorted(found)).encode()).hexdigest()[:12]
    assert (handshake.PROTOCOL, digest) == (5, DIGEST)


DIGEST = "d9f94dc20fc9"
