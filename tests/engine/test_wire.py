"""Messages over a socket."""

import dataclasses
import pickle

import pytest

from switchyard.engine.links import wire
from switchyard.engine.links.wire import HEAD, Wire
from switchyard.engine.sampling import Sampling
from tests.scripted import job


def frame(message):
    data = pickle.dumps(message)
    return HEAD.pack(len(data)) + data


@pytest.fixture
def ends(ends):
    here, there = ends
    with Wire(there) as there:
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


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    name: str
    number: int = 0
    parts: tuple[str, ...] = ()


def told_of_later(**more):
    """A `Told` as a later version has it, with three fields more."""
    fields = [("name", str), ("number", int, 0), ("parts", tuple, ())]
    fields += [("extra", float, 1.0), ("others", list, dataclasses.field(default_factory=list))]
    later = dataclasses.make_dataclass("Told", [*fields, ("flag", bool, False)], frozen=True)
    later.__module__ = __name__
    return later("a", **more)


@pytest.fixture
def send_later(ends, monkeypatch):
    """Send what another version has: by its name, its class is the one here."""

    def send(wire, message, kind):
        monkeypatch.setattr(f"{__name__}.Told", kind)
        wire.send(message)
        monkeypatch.undo()

    return send


def test_fields_of_a_later_version_cross_unless_they_ask_for_something(send_later):
    (here, there), refused = Wire.pair(), []
    there._refuse = lambda message, more: refused.append((message, more)) or message == [Told("a")]
    with here, there:
        for more in ({}, {"number": 3}, {"extra": 2.0, "flag": True}, {"number": 4, "others": [1]}):
            later = told_of_later(**more)
            send_later(here, [later], type(later))
        here.send([Told("b", parts=("x",))])
        got = []
        while len(got) < 4:
            got += there.receive(20)
    assert got == [[Told("a")], [Told("a", 3)], [Told("a", 4)], [Told("b", parts=("x",))]]
    assert refused == [([Told("a")], ("extra", "flag")), ([Told("a", 4)], ("others",))]


def test_an_earlier_version_is_told_by_its_defaults():
    """And a field that has the type of another value crosses as it is."""
    here, there = Wire.pair()
    with here, there:
        for one in (Told("a", True), Told("a", 0), Sampling(top_k=5), job("a")):
            here.send(one)
            got = there.receive_one(20)
            assert got == one and repr(got) == repr(one)
