"""The table of models, where it shows late, or seldom: what counts as use, what is tried again and
when, what is left behind, what another does meanwhile.
"""

import dataclasses
import time

import pytest

from switchyard import engine
from switchyard.app.table_settings import TableModel
from switchyard.engine.messages import LoadProgress
from switchyard.engine.models import lifecycle
from tests.conftest import wait_for
from tests.engine.models.asked import end_of, in_threads, no_room
from tests.scripted import Gate, ScriptedBackend, job

# Use


@pytest.mark.parametrize("last", ["load", "lease", "job"])
def test_a_model_is_idle_from_the_end_of_its_last_use_on(served, last):
    table = served(clock=lambda: table.now)
    gate, backend = Gate(), table.closed("a")
    backend._gate = gate
    models = table.start(table.model("a", load="manual", idle_timeout=60.0))
    load = models.load("a")
    wait_for(lambda: backend.calls)
    table.now += 100 * (last == "load")
    backend.opening.set()
    load.wait(20)
    if last != "load":
        lease = models.lease("a")
        stream = lease.engine.submit([job("j")])
        if last == "job":
            lease.release()
            table.now += 100
            table.settle()
        gate.open()
        assert end_of(stream) is engine.Finished
        table.now += 50 if last == "job" else 100
        lease.release()
    table.settle()
    assert models.status("a").state == "ready"
    table.now += 61
    table.settle()
    assert models.status("a").state == "unloaded"


def test_what_changes_already_is_not_unloaded_for_being_idle(served):
    table = served(clock=lambda: table.now)
    models = table.start(table.model("a", idle_timeout=60.0))
    table.use("a")
    backend = table.closed("a")
    load = models.swap(table.model("a", max_pending=7))
    table.now += 100
    table.tick()
    backend.opening.set()
    assert load.wait(20) is None and models.status("a").state == "ready"


def test_the_look_at_what_is_idle_is_repeated(served, monkeypatch):
    monkeypatch.setattr("switchyard.engine.models.table.TICK", 0.01)
    table = served(clock=lambda: table.now)
    models = table.start(table.model("a", idle_timeout=60.0))
    for _ in range(2):
        table.use("a")
        table.now += 61
        wait_for(lambda: models.status("a").state == "unloaded")


# Tries


def test_a_model_of_the_server_that_could_not_be_loaded_again_comes_back_by_itself(served):
    table = served(clock=lambda: table.now)
    models = table.ready("a", "b")
    models.unload("a").wait(20)
    table.fail("a")
    with pytest.raises(engine.ModelError):
        models.load("a").wait(20)
    table.now += lifecycle.RETRY - 0.1
    table.settle()
    assert models.status("a").state == "failed"
    table.now += 0.1  # to the second
    table.settle()
    assert models.status("a").state == "ready"


def test_what_was_unloaded_stays_so_and_comes_back_if_it_is_lost_behind_a_load(served):
    table = served(clock=lambda: table.now)
    models = table.ready("b", "a")
    table.lose("b")
    backend = table.closed("b")
    table.now += lifecycle.RETRY
    table.tick()
    wait_for(lambda: backend.calls)
    load = models.unload("b")  # while it comes back
    backend.opening.set()
    with pytest.raises(engine.EngineError):
        load.wait(20)
    number = len(table.backends)
    for _ in range(2):
        table.now += lifecycle.MAX_RETRY
        table.settle()
    assert len(table.backends) == number and not models.get("b").standing.is_ready
    for change in (models.load, lambda name: models.swap(table.model(name))):
        change("b").wait(20)
        table.lose("b")
        table.now += lifecycle.RETRY  # as after a first failure
        table.settle()
        assert models.status("b").state == "ready"
        models.unload("b").wait(20)


def test_a_request_is_told_how_long_what_has_failed_is_let_be(served):
    table = served(clock=lambda: table.now)
    table.fail("b")
    models = table.start("a", "b")
    for left in (lifecycle.RETRY, lifecycle.RETRY - 2):
        with pytest.raises(engine.Dead) as told:
            models.lease("b")
        assert told.value.retry_after == left
        table.now += 2


def test_a_request_does_not_wait_for_ever(served):
    table = served(load_wait=0.05)
    backend = table.closed("a")
    models = table.start(table.model("a", max_pending=0))  # one may wait all the same
    [error] = in_threads(1, lambda: models.lease("a")).join()
    assert isinstance(error, engine.Loading)
    assert error.retry_after == lifecycle.RETRY and models.status("a").num_waiting == 0
    backend.opening.set()


def test_who_waits_for_what_is_unloaded_meanwhile_is_told_so(table):
    backend = table.closed("a")
    models = table.start("a")
    results = in_threads(1, lambda: models.lease("a"))
    wait_for(lambda: backend.calls and models.status("a").num_waiting)
    models.unload("a")
    backend.opening.set()
    assert isinstance(results.join()[0], engine.Unloaded)


# Room


def test_where_the_estimate_was_too_low_the_least_recently_used_goes_for_it(table):
    table.scripts["b"] = [no_room(), ScriptedBackend()]
    table.start(*"abc")
    table.use("a", "c", "b")
    assert table.loaded() == ["b", "c"]


def test_a_swap_beside_is_refused_where_there_is_no_room_for_it_after_all(table):
    models = table.ready("a")
    old = models.get("a")
    table.scripts["a"] = [no_room()]
    with pytest.raises(engine.NoRoom, match="after all"):
        models.swap(table.model("a", max_pending=7), "beside").wait(20)
    assert models.get("a") is old and old.state == "ready"
    table.scripts["a"] = [no_room(), ScriptedBackend()]
    load = models.swap(table.model("a", max_pending=8))  # unless nothing was asked
    load.wait(20)
    assert load.way == "drain" and models.get("a").config.max_pending == 8


def test_a_swap_may_have_the_room_of_what_is_idle(served):
    table = served(size=20)
    models = table.ready("a", "b")
    table.use("b")
    models.swap(table.model("a", size=15)).wait(20)
    assert table.loaded() == ["a"] and models.get("a").config.max_batch_size == 15


def test_what_is_leased_between_the_look_and_the_end_stays(served):
    table = served(size=10)
    leases, looks = [], []
    free = table.look.free

    def lease_meanwhile(places):
        if models.get("a").standing.is_ready and not leases:
            leases.append(models.lease("a"))
        looks.append(len(leases))
        return free(places)

    models = table.start("a", "b")
    table.use("a")
    table.look.free = lease_meanwhile
    results = in_threads(1, lambda: models.lease("b"))
    wait_for(lambda: len(looks) > 2)
    [lease] = leases
    assert lease.engine.state == "ready"
    lease.release()
    results.join()[0].release()
    assert table.loaded() == ["b"]


def test_who_asks_for_what_is_about_to_go_waits_for_its_return(served):
    table = served(max_loaded=1)
    gate, backend = Gate(), ScriptedBackend()
    backend.close = gate.wait
    table.scripts["a"] = [backend]
    models = table.start("a", "b")
    table.use("a")
    others = in_threads(1, lambda: models.lease("b").release())
    gate.wait_until_held()
    results = in_threads(1, lambda: end_of(table.submit("a")))
    wait_for(lambda: models.status("a").num_waiting or results[0])
    assert models.status("a").state == "loading"
    gate.open()
    assert (others.join(), results.join()) == ([None], [engine.Finished])


# Ends


def test_an_engine_that_gave_way_ends_by_its_own_time_and_is_forgotten(table):
    gate = table.gated("a")
    models = table.ready("a", drain=0.0)
    old, stream = models.get("a"), table.submit("a")
    models.swap(table.model("a", drain=600.0)).wait(20)
    assert end_of(stream) is engine.Failed
    assert models.status("a").num_jobs == 0 and models.engines == [models.get("a"), old]
    gate.open()
    wait_for(lambda: models.engines == [models.get("a")])


@pytest.mark.parametrize("is_released", [True, False])
def test_leases_and_jobs_have_the_time_of_a_drain_together(table, monkeypatch, is_released):
    models = table.start(table.model("a", drain=30.0))
    lease = models.lease("a")
    told = []
    close = lease.engine.close
    lease.engine.close = lambda drain=0.0, timeout=None: told.append(drain) or close(0.0, timeout)
    load = models.unload("a", None if is_released else 0.05)
    if is_released:
        assert load.wait(0.05) is not None
        lease.release()
    assert load.wait(20) is None
    assert 0 < told[0] < 30 if is_released else told == [0.0]


def test_a_server_that_ends_gives_all_of_them_the_time(table):
    gates = [*map(table.gated, "abc")]
    models = table.start(*"abc")
    streams = [*map(table.submit, "abc")]
    results = in_threads(1, lambda: models.close(drain=60.0, timeout=20))
    wait_for(lambda: {models.status(name).state for name in "abc"} == {"draining"})
    for gate in gates:
        gate.open()
    assert [*map(end_of, streams)] == [engine.Finished] * 3
    assert results.join() == [True]


def test_a_server_that_ends_ends_what_still_loads(table):
    models = table.ready("a")
    backend = table.closed("a")
    load = models.swap(table.model("a", max_pending=7))
    wait_for(lambda: backend.calls)
    results = in_threads(1, lambda: models.close(timeout=20))
    wait_for(lambda: load.engine.state in ("draining", "stopped"))
    backend.opening.set()
    assert results.join() == [True]
    with pytest.raises(engine.EngineError):
        load.wait(20)


def test_an_unload_at_once_waits_for_no_job_whatever_the_models_own_time(table):
    gate = table.gated("a")
    models = table.start(table.model("a", drain=600.0))
    stream = table.submit("a")
    load = models.unload("a", 0.0)
    assert end_of(stream) is engine.Failed
    gate.open()
    load.wait(20)


def test_a_lease_is_given_back_once(table):
    models = table.start("a")
    lease, other = models.lease("a"), models.lease("a")
    for _ in range(2):
        lease.release()
    assert models.status("a").num_leases == 1
    other.release()
    assert models.status("a").num_leases == 0


# What is told


def test_a_load_tells_its_seconds_and_a_name_that_serves_no_progress(table):
    models = table.ready("a")
    backend = table.closed("a")
    begin = time.monotonic()
    load = models.swap(table.model("a", max_pending=7))
    wait_for(lambda: backend.calls)
    load.engine.deliver([LoadProgress(0.5)])
    assert load.wait(0) == 0.5 and load.seconds is None
    assert (models.status("a").state, models.status("a").progress) == ("ready", None)
    backend.opening.set()
    load.wait(20)
    assert 0 < load.seconds <= time.monotonic() - begin


@pytest.mark.parametrize("name", ["load", "idle_timeout", "drain"])
def test_settings_of_a_model_are_by_default_as_without_a_table(name):
    [own] = [field for field in dataclasses.fields(engine.Served) if field.name == name]
    assert TableModel.model_fields[name].default == own.default
    expected = {"load": "start", "idle_timeout": 0.0, "drain": 60.0}
    assert own.default == expected[name]
