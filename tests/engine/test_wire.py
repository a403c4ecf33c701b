"""Messages over a socket."""

import pickle
import socket

import pytest

from switchyard.engine.links import wire
from switchyard.engine.links.wire import HEAD, Wire
from tests.scripted import job


def frame(message):
    data = pickle.dumps(message)
    return HEAD.pack(len(data)) + data


@pytest.fixture
def ends():
    here, there = socket.socketpair()
    with here, Wire(there) as there:
        yield here, there


def test_messages_come_whole_however_their_bytes_do(ends):
    here, there = ends
    sent = [job("a"), [], "ä" * 1000]
    data = b"".join(map(frame, sent))
    got = []
    for i in range(0, len(data), 7):
        here.sendall(data[i : i + 7])
        got += there.receive(20)
    assert got == sent
    here.sendall(data)
    assert there.receive(20) == sent
    assert there.receive(0) is None


def test_of_several_that_have_come_the_first_can_be_taken_alone(ends):
    here, there = ends
    here.sendall(frame("setup") + frame("command") + frame("another")[:3])
    assert there.receive_one() == "setup"
    here.sendall(frame("another")[3:])
    assert there.receive(20) == ["command"] and there.receive(20) == ["another"]


def test_the_other_ends_end_is_told_behind_its_last_message(ends):
    here, there = ends
    here.sendall(frame("last"))
    here.close()
    assert there.receive(20) == ["last"]
    with pytest.raises(EOFError):
        there.receive(20)


def test_no_message_takes_all_memory(ends, monkeypatch):
    here, there = ends
    monkeypatch.setattr(wire, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="bytes"):
        there.send("x" * 1000)
    here.sendall(HEAD.pack(1001))
    with pytest.raises(OSError, match="1001 bytes"):
        there.receive(20)


def test_a_connection_that_is_shut_is_over_for_both_ends():
    here, there = Wire.pair()
    with here, there:
        here.shut()
        for end in (here, there):
            with pytest.raises(EOFError):
                end.receive(0)
            with pytest.raises(BrokenPipeError):
                end.send("more")
