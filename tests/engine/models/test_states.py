"""What is told of a name in the table, whatever has become of its engine. Pure."""

from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.memory.estimate import GIB
from switchyard.engine.memory.residency import Resident
from switchyard.engine.models import opening
from switchyard.engine.models.entry import Entry, Instance
from switchyard.engine.models.load import Load
from switchyard.engine.models.room import _no_room

LOST = engine.DeviceLost("gone")


def entry_of(policy, is_started, is_stopped, **more):
    standing = SimpleNamespace(is_stopped=is_stopped, is_ready=is_started and not is_stopped)
    state = "stopped" if is_stopped else "ready"
    one = SimpleNamespace(is_started=is_started, standing=standing, state=state, num_jobs=0)
    entry = Entry("m", Instance(engine.Served(ModelConfig("m", "m"), policy), one))
    for name, value in more.items():
        setattr(entry, name, value)
    return entry


def cancelled():
    load = Load("m", is_load=True)
    load.is_cancelled = True
    return load


BEFORE, RUNS, ENDED = (False, False), (True, False), (True, True)


@pytest.mark.parametrize(
    ("policy", "life", "more", "state", "is_there", "comes_back"),
    [
        ("start", BEFORE, {}, "loading", False, False),
        ("demand", BEFORE, {}, "unloaded", False, False),
        ("manual", BEFORE, {}, "unloaded", False, False),
        ("start", BEFORE, {"was_unloaded": True}, "unloaded", False, False),
        ("demand", BEFORE, {"load": Load("m", is_load=True)}, "loading", False, False),
        ("demand", BEFORE, {"error": LOST}, "failed", False, False),
        ("start", BEFORE, {"error": LOST}, "failed", False, True),
        ("demand", RUNS, {}, "ready", True, False),
        ("demand", RUNS, {"load": Load("m", is_waited_for=False)}, "ready", True, False),
        ("demand", RUNS, {"load": Load("m", is_unload=True)}, "ready", False, False),
        ("demand", RUNS, {"load": cancelled()}, "loading", False, False),
        ("start", ENDED, {}, "unloaded", False, False),
        ("demand", ENDED, {"error": LOST}, "failed", False, False),
        ("demand", ENDED, {"error": LOST, "was_lost": True}, "failed", False, True),
        ("start", ENDED, {"error": LOST}, "failed", False, True),
        ("start", ENDED, {"error": LOST, "was_unloaded": True}, "failed", False, False),
        ("start", ENDED, {"error": LOST, "is_lost": True}, "stopped", True, False),
        ("demand", ENDED, {"load": Load("m", is_load=True)}, "loading", False, False),
    ],
)
def test_a_name_is_told_as_it_stands(policy, life, more, state, is_there, comes_back):
    entry = entry_of(policy, *life, **more)
    assert (entry.state, entry.is_there, entry.comes_back) == (state, is_there, comes_back)
    assert entry.is_ending == (life == ENDED)
    entry.instance.is_noted = True
    assert not entry.is_ending


def test_an_engine_is_idle_without_leases_and_jobs():
    instance = entry_of("demand", *RUNS).instance
    assert instance.is_idle and instance.is_loaded
    instance.num_leases = 1
    assert not instance.is_idle
    instance.num_leases, instance.engine.num_jobs = 0, 1
    assert not instance.is_idle


def test_a_model_without_room_is_told_the_sums_of_each_place():
    gone = [Resident("a", {"host": GIB, 1: GIB}, 0.0), Resident("b", {1: GIB // 2}, 0.0)]
    error = _no_room({"host": 4 * GIB, 0: GIB, 1: 3 * GIB}, {"host": GIB // 2, 1: GIB}, gone)
    assert type(error) is engine.NoRoom
    assert str(error).endswith(
        "it needs 4.0 GiB of memory (1.5 GiB free), 1.0 GiB of GPU 0 (0.0 GiB free),"
        " 3.0 GiB of GPU 1 (2.5 GiB free)"
    )


@pytest.mark.parametrize(
    ("settings", "without_gpu", "with_gpu"),
    [
        ({}, False, True),
        ({"device": "cpu"}, False, False),
        ({"device": "cuda"}, True, True),
        ({"link": "thread", "device": "cuda"}, False, False),
        ({"link": "process", "device": "cpu"}, True, True),
        ({"replicas": 2, "device": "cpu"}, True, True),
    ],
    ids=str,
)
def test_an_engine_has_a_process_on_a_gpu_or_if_asked(monkeypatch, settings, without_gpu, with_gpu):
    for is_there, told in ((False, without_gpu), (True, with_gpu)):
        monkeypatch.setattr(opening, "has_gpu", lambda is_there=is_there: is_there)
        assert opening.has_own_process(ModelConfig("m", "m", **settings)) is told
