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


def test_what_systemd_says_is_taken_and_children_do_not_get_it():
    variables = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "6000000", "WATCHDOG_PID": "1"}
    notifier = Notifier.take(variables)
    assert (variables, notifier.is_on, notifier.period) == ({}, True, 2.0)
    assert not Notifier.take(variables).is_on


def test_nobody_listens_and_nothing_happens(tmp_path):
    Notifier(str(tmp_path / "gone")).tell("READY=1")
    Notifier().tell("READY=1")
