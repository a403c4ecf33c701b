"""When systemd gets signs of life, by a clock of the test's own."""

import os
import socket
from types import SimpleNamespace

import pytest

from switchyard.server.notifier import OWN_TURN, Notifier, Pulse


class Models:
    """One, of that state."""

    def __init__(self, link="thread"):
        self.names = ["one"]
        self.state, self.progress = "ready", None
        self._served = SimpleNamespace(config=SimpleNamespace(link=link, hang_exit=180.0))

    def status(self, name):
        return SimpleNamespace(name=name, state=self.state, progress=self.progress)

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


def test_one_that_hangs_longer_than_the_server_bears_gives_no_sign_of_life(heard, notifier):
    models, now = Models(), [1000.0]
    pulse = Pulse(notifier, models, lambda: now[0])

    def has_sign_after(seconds):
        now[0] += seconds
        pulse.beat()
        return "WATCHDOG=1" in heard()

    assert has_sign_after(0)
    models.state = "hanging"
    assert has_sign_after(5) and has_sign_after(180 + OWN_TURN)
    assert not has_sign_after(1)
    models.state = "ready"
    assert has_sign_after(5)
    models.state = "hanging"
    assert has_sign_after(5)


def test_an_engine_that_others_share_ends_no_server(heard, notifier):
    models, now = Models("socket"), [1000.0]
    pulse = Pulse(notifier, models, lambda: now[0])
    models.state = "hanging"
    for _ in range(2):
        pulse.beat()
        assert "WATCHDOG=1" in heard()
        now[0] += 10_000


def test_a_load_asks_for_time_and_tells_how_far_it_is(heard, notifier):
    models = Models()
    models.state, models.progress = "loading", 0.4
    Pulse(notifier, models).beat()
    assert heard() == ["STATUS=one: loading 40%", "EXTEND_TIMEOUT_USEC=30000000", "WATCHDOG=1"]


class Two:
    """Models, of these states."""

    def __init__(self, **states):
        self.names = ["one", "two"]
        self.states = states

    def status(self, name):
        return SimpleNamespace(name=name, state=self.states[name], progress=None)

    def served(self, name):
        return SimpleNamespace(config=SimpleNamespace(link="thread", hang_exit=180.0))


@pytest.mark.parametrize("loading", ["one", "two"])
def test_all_models_are_told_and_any_that_loads_asks_for_time(heard, notifier, loading):
    states = {"one": "ready", "two": "ready", loading: "loading"}
    Pulse(notifier, Two(**states)).beat()
    status, *more = heard()
    assert status == f"STATUS=one: {states['one']}, two: {states['two']}"
    assert more == ["EXTEND_TIMEOUT_USEC=30000000", "WATCHDOG=1"]


def test_a_model_that_hangs_too_long_is_not_excused_by_one_that_has_just_begun(heard, notifier):
    models, now = Two(one="hanging", two="ready"), [1000.0]
    pulse = Pulse(notifier, models, lambda: now[0])
    for seconds, states, is_alive in (
        (0, {}, True),
        (180 + OWN_TURN, {}, True),
        (1, {"two": "hanging"}, False),
        (5, {"one": "ready"}, True),
    ):
        now[0] += seconds
        models.states |= states
        pulse.beat()
        assert ("WATCHDOG=1" in heard()) is is_alive


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
