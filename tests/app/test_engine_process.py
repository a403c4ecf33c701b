"""`switchyard engine`: how its process starts and ends, without an engine."""

import os
import signal
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.server import shared_engine as module
from switchyard.server.shared_engine import LOST, NOT_LOADED, RELEASE


class Host:
    """An engine that ends by itself after some looks, or is told to end by a signal."""

    def __init__(self, is_loaded, looks, told_at, is_released):
        self.loads_at, self.looks, self.told_at = 1 if is_loaded else 99, looks, told_at
        self.is_released, self.number, self.closed = is_released, 0, []
        self.num_jobs, self.num_wanted = 3, 2

    @property
    def is_loaded(self):
        return self.number >= self.loads_at

    def start(self):
        assert self.number == 0

    def wait(self, seconds):
        self.number += 1
        if self.number == self.told_at:
            signal.raise_signal(signal.SIGTERM)
        return self.number >= self.looks

    def close(self, drain=None, timeout=None):
        self.closed.append((drain, timeout))
        return self.is_released


@pytest.fixture
def run(monkeypatch):
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    told, opened = [], []

    def run(host, **options):
        monkeypatch.setattr(module, "open_host", lambda *args: opened.append(args) or host)
        notifier = SimpleNamespace(
            period=0.0,
            tell=lambda *lines: told.append(lines),
            tell_loads=lambda status: told.append((status,)),
            tell_end=lambda seconds: told.append(("end", seconds)),
        )
        monkeypatch.setattr(module.Notifier, "take", lambda variables: notifier)
        settings = SimpleNamespace(log_level="INFO", log_format="text", grace=7.0)
        config = engine.ModelConfig("/models/one", "one", **options)
        return module.run(config, "here", settings), told, opened

    def nothing(*_):
        pass

    quiet = SimpleNamespace(enable=nothing, listen=nothing)
    for name, value in (("faulthandler", quiet), ("logs", quiet), ("keep_memory_small", nothing)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(os, "environ", {})
    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("is_loaded", "told_at", "is_released", "status", "times"),
    [
        (True, 2, True, 0, (7.0, RELEASE)),
        (True, 2, False, LOST, (7.0, RELEASE)),
        (False, 2, True, 0, (7.0, RELEASE)),
        (True, 0, True, LOST, (None, RELEASE)),
        (False, 0, True, NOT_LOADED, (None, RELEASE)),
    ],
)
def test_the_status_tells_how_an_engine_ended(run, is_loaded, told_at, is_released, status, times):
    host = Host(is_loaded, 4, told_at, is_released)
    assert run(host)[0] == status
    assert host.closed == [times]


def test_systemd_hears_of_the_load_then_of_life_and_of_the_time_of_the_end(run):
    host = Host(True, 9, 4, True)
    host.loads_at = 3
    _, told, _ = run(host)
    loads, lives = ("loading",), ("WATCHDOG=1", "STATUS=ready, 3 jobs, 2 wanted")
    ready, end = ("READY=1", "STATUS=ready"), ("end", 7.0 + RELEASE)
    assert told == [loads, loads, ready, lives, lives, end]


def test_a_second_signal_ends_the_process_at_once(run, monkeypatch):
    ends = []
    monkeypatch.setattr(os, "_exit", ends.append)
    host = Host(True, 4, 2, True)
    host.close = lambda **times: signal.raise_signal(signal.SIGINT)
    run(host)
    assert ends == [LOST]


@pytest.mark.parametrize(
    ("gpus", "replicas", "visible", "left"), [((1,), 1, "1", ()), ((0, 1), 2, None, (0, 1))]
)
def test_an_engine_of_this_process_sees_its_gpus_alone(run, gpus, replicas, visible, left):
    _, _, opened = run(Host(True, 1, 0, True), gpus=gpus, replicas=replicas, link="process")
    [(config, at)] = opened
    assert (os.environ.get("CUDA_VISIBLE_DEVICES"), config.gpus, at) == (visible, left, "here")
