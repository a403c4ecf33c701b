"""When systemd gets signs of life, by a clock of the test's own."""

import os
import socket
from types import SimpleNamespace

import pytest

from switchyard.server.notifier import OWN_TURN, Notifier, Pulse


class Models:
    """Of these states."""

    def __init__(self, link="thread", progress=None, **states):
        self.names, self.states, self.progress = [*states], states, progress
        self._served = SimpleNamespace(config=SimpleNamespace(link=link, hang_exit=180.0))

    def status(self, name):
        return SimpleNamespace(name=name, state=self.states[name], progress=self.progress)

    def served(self, name):
        return self._served


@pytest.fixture
def heard(tmp_path):
    """Waits for the next message."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.bind(str(tmp_path / "notify"))
        yield lambda: sock.recv(4096).decode().splitlines()


@pytest.fixture
def notifier(tmp_path):
    return Notifier(str(tmp_path / "notify"))


def test_systemd_may_listen_at_an_abstract_address():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.bind(f"\0switchyard-{os.getpid()}")
        Notifier(f"@switchyard-{os.getpid()}").tell("READY=1")
        assert sock.recv(4096) == b"READY=1"


HANGS, READY = {"one": "hanging"}, {"one": "ready"}


@pytest.mark.parametrize(
    ("models", "turns"),  # of a turn: after how many seconds, what changes, whether there is a sign
    [
        (
            Models(one="ready"),
            [
                *[(0, {}, True), (5, HANGS, True), (180 + OWN_TURN, {}, True), (1, {}, False)],
                *[(5, READY, True), (5, HANGS, True)],
            ],
        ),
        (Models("socket", one="hanging"), [(0, {}, True), (10_000, {}, True)]),  # ends no server
        (  # which isn't excused by another that has just begun to hang
            Models(one="hanging", two="ready"),
            [
                *[(0, {}, True), (180 + OWN_TURN, {}, True), (1, {"two": "hanging"}, False)],
                (5, READY, True),
            ],
        ),
    ],
    ids=["own", "shared", "two"],
)
def test_one_that_hangs_longer_than_the_server_bears_gives_no_sign(heard, notifier, models, turns):
    now = [1000.0]
    pulse = Pulse(notifier, models, lambda: now[0])
    for seconds, changed, has_sign in turns:
        now[0] += seconds
        models.states |= changed
        pulse.beat()
        assert ("WATCHDOG=1" in heard()) is has_sign


@pytest.mark.parametrize(
    ("models", "told"),
    [
        (Models(one="loading", progress=0.4), "one: loading 40%"),
        (Models(one="loading", two="ready"), "one: loading, two: ready"),
        (Models(one="ready", two="loading"), "one: ready, two: loading"),
    ],
    ids=["alone", "first", "second"],
)
def test_all_models_are_told_and_any_that_loads_asks_for_time(heard, notifier, models, told):
    Pulse(notifier, models).beat()
    assert heard() == [f"STATUS={told}", "EXTEND_TIMEOUT_USEC=30000000", "WATCHDOG=1"]


@pytest.mark.parametrize(
    ("microseconds", "period"),
    [("6000000", 2.0), ("15000000", 5.0), ("60000000", 5.0), ("0", 5.0), ("soon", 5.0)],
)
def test_signs_of_life_come_three_times_as_often_as_wanted(microseconds, period):
    variables = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": microseconds}
    assert Notifier.take(variables).period == period


def test_the_end_asks_for_its_time_and_each_line_is_heard(heard, notifier):
    notifier.tell_end(2.5)
    assert heard() == ["STOPPING=1", "EXTEND_TIMEOUT_USEC=2500000"]
    notifier.tell_loads("so far", "MORE=1")
    assert heard() == ["STATUS=so far", "EXTEND_TIMEOUT_USEC=30000000", "MORE=1"]


def test_what_systemd_says_is_taken_and_children_do_not_get_it():
    variables = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "6000000", "WATCHDOG_PID": "1"}
    notifier = Notifier.take(variables)
    assert (variables, notifier.is_on, notifier.period) == ({}, True, 2.0)
    assert not Notifier.take(variables).is_on


def test_nobody_listens_and_nothing_happens(tmp_path):
    Notifier(str(tmp_path / "gone")).tell("READY=1")
    Notifier().tell("READY=1")
