"""The table of models, where it shows late, or seldom: what counts as use, what is tried again and
when, what is left behind, what another does meanwhile.
"""

import dataclasses
import time

import pytest

from switchyard import engine
from switchyard.app.table_settings import TableModel
from switchyard.engine.messages import LoadProgress, Stopped
from switchyard.engine.models import lifecycle
from tests.engine.models.asked import closed, ends, in_threads, wait_for
from tests.engine.reading import take_all
from tests.scripted import Gate, ScriptedBackend, job


def tick(models):
    with models._changed:
        models._life.tick()
    wait_for(lambda: all(entry.load is None for entry in models._entries.values()))


def lose(models, name):
    lost = models.get(name)
    lost.deliver([Stopped(engine.DeviceLost("gone"))])
    lost.close()
    wait_for(lambda: models.status(name).state == "failed")


def take_soon(stream):
    """Before a watchdog would end it."""
    events = []
    while not stream.is_finished:
        taken = stream.take(10)
        assert taken
        events += taken
    return events


# Use


@pytest.mark.parametrize("last", ["load", "lease", "job"])
def test_a_model_is_idle_from_the_end_of_its_last_use_on(served, last):
    table = served(clock=lambda: table.now)
    gate, backend = Gate(), closed()
    backend._gate = gate
    table.scripts["a"] = [backend]
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
            tick(models)
            gate.open()
        else:
            gate.open()
        assert ends(take_all(stream)) is engine.Finished
        table.now += 50 if last == "job" else 100
        lease.release()
    tick(models)
    assert models.status("a").state == "ready"
    table.now += 61
    tick(models)
    assert models.status("a").state == "unloaded"


def test_what_changes_already_is_not_unloaded_for_being_idle(served):
    table = served(clock=lambda: table.now)
    models = table.start(table.model("a", idle_timeout=60.0))
    models.lease("a").release()
    backend = closed()
    table.scripts["a"] = [backend]
    load = models.swap(table.model("a", max_pending=7))
    table.now += 100
    with models._changed:
        models._life.tick()
    backend.opening.set()
    assert load.wait(20) is None and models.status("a").state == "ready"


def test_the_look_at_what_is_idle_is_repeated(served, monkeypatch):
    monkeypatch.setattr("switchyard.engine.models.table.TICK", 0.01)
    table = served(clock=lambda: table.now)
    models = table.start(table.model("a", idle_timeout=60.0))
    for _ in range(2):
        models.lease("a").release()
        table.now += 61
        wait_for(lambda: models.status("a").state == "unloaded")


# Tries


def test_a_model_of_the_server_that_could_not_be_loaded_again_comes_back_by_itself(served):
    table = served(clock=lambda: table.now)
    models = table.start(table.model("a", load="start"), table.model("b"))
    assert models.wait_until_loaded(20)
    models.unload("a").wait(20)
    table.scripts["a"] = [ScriptedBackend(open_error=engine.ModelError("no weights"))]
    with pytest.raises(engine.ModelError):
        models.load("a").wait(20)
    table.now += lifecycle.RETRY - 0.1
    tick(models)
    assert models.status("a").state == "failed"
    table.now += 0.1  # to the second
    tick(models)
    assert models.status("a").state == "ready"


def test_what_was_unloaded_stays_so_and_comes_back_if_it_is_lost_behind_a_load(served):
    table = served(clock=lambda: table.now)
    models = table.start(table.model("a"), table.model("b", load="start"))
    assert models.wait_until_loaded(20)
    lose(models, "b")
    backend = closed()
    table.scripts["b"] = [backend]
    table.now += lifecycle.RETRY
    with models._changed:
        models._life.tick()
    wait_for(lambda: backend.calls)
    load = models.unload("b")  # while it comes back
    backend.opening.set()
    with pytest.raises(engine.EngineError):
        load.wait(20)
    number = len(table.backends)
    for _ in range(2):
        table.now += lifecycle.MAX_RETRY
        tick(models)
    assert len(table.backends) == number and not models.get("b").standing.is_ready
    for change in (models.load, lambda name: models.swap(table.model(name))):
        change("b").wait(20)
        lose(models, "b")
        table.now += lifecycle.RETRY  # as after a first failure
        tick(models)
        assert models.status("b").state == "ready"
        models.unload("b").wait(20)


def test_a_request_is_told_how_long_what_has_failed_is_let_be(served):
    table = served(clock=lambda: table.now)
    bad = ScriptedBackend(open_error=engine.ModelError("no weights"))
    table.scripts["b"] = [bad]
    models = table.start(table.model("a"), table.model("b"))
    for left in (lifecycle.RETRY, lifecycle.RETRY - 2):
        with pytest.raises(engine.Dead) as told:
            models.lease("b")
        assert told.value.retry_after == left
        table.now += 2


def test_a_request_does_not_wait_for_ever(served):
    table = served(load_wait=0.05)
    backend = closed()
    table.scripts["a"] = [backend]
    models = table.start(table.model("a", max_pending=0))  # one may wait all the same
    threads, results = in_threads(1, lambda: models.lease("a"))
    threads[0].join(10)
    assert isinstance(results[0], engine.Loading)
    assert results[0].retry_after == lifecycle.RETRY and models.status("a").num_waiting == 0
    backend.opening.set()


def test_who_waits_for_what_is_unloaded_meanwhile_is_told_so(served):
    table = served()
    backend = closed()
    table.scripts["a"] = [backend]
    models = table.start(table.model("a"))
    threads, results = in_threads(1, lambda: models.lease("a"))
    wait_for(lambda: backend.calls and models.status("a").num_waiting)
    models.unload("a")
    backend.opening.set()
    threads[0].join(20)
    assert isinstance(results[0], engine.Unloaded)


# Room


def no_room():
    return ScriptedBackend(open_error=engine.NoRoom("too little after all"))


def test_where_the_estimate_was_too_low_the_least_recently_used_goes_for_it(served):
    table = served()
    table.scripts["b"] = [no_room(), ScriptedBackend()]
    models = table.start(*(table.model(name) for name in "abc"))
    models.lease("a").release()
    models.lease("c").release()
    models.lease("b").release()
    assert table.loaded() == ["b", "c"]


def test_a_swap_beside_is_refused_where_there_is_no_room_for_it_after_all(served):
    table = served()
    models = table.start(table.model("a", load="start"))
    assert models.wait_until_loaded(20)
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
    models = table.start(table.model("a", load="start"), table.model("b"))
    assert models.wait_until_loaded(20)
    models.lease("b").release()
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

    models = table.start(table.model("a"), table.model("b"))
    models.lease("a").release()
    table.look.free = lease_meanwhile
    threads, results = in_threads(1, lambda: models.lease("b"))
    wait_for(lambda: len(looks) > 2)
    [lease] = leases
    assert lease.engine.state == "ready"
    lease.release()
    threads[0].join(20)
    results[0].release()
    assert table.loaded() == ["b"]


def test_who_asks_for_what_is_about_to_go_waits_for_its_return(served):
    table = served(max_loaded=1)
    backend = ScriptedBackend()
    gate = Gate()
    backend.close = gate.wait
    table.scripts["a"] = [backend]
    models = table.start(table.model("a"), table.model("b"))
    models.lease("a").release()
    first, others = in_threads(1, lambda: models.lease("b").release())
    gate.wait_until_held()

    def generate():
        with models.lease("a") as there:
            return ends(take_all(there.submit([job("j")])))

    threads, results = in_threads(1, generate)
    wait_for(lambda: models.status("a").num_waiting or results[0])
    assert models.status("a").state == "loading"
    gate.open()
    for thread in (*first, *threads):
        thread.join(20)
    assert (others, results) == ([None], [engine.Finished])


# Ends


def test_an_engine_that_gave_way_ends_by_its_own_time_and_is_forgotten(served):
    table = served()
    gate = Gate()
    table.scripts["a"] = [ScriptedBackend(gate=gate)]
    models = table.start(table.model("a", load="start", drain=0.0))
    assert models.wait_until_loaded(20)
    with models.lease("a") as old:
        stream = old.submit([job("j")])
    models.swap(table.model("a", drain=600.0)).wait(20)
    assert ends(take_soon(stream)) is engine.Failed
    assert models.status("a").num_jobs == 0 and models.engines == [models.get("a"), old]
    gate.open()
    wait_for(lambda: models.engines == [models.get("a")])


@pytest.mark.parametrize("is_released", [True, False])
def test_leases_and_jobs_have_the_time_of_a_drain_together(served, monkeypatch, is_released):
    table = served()
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


def test_a_server_that_ends_gives_all_of_them_the_time(served):
    table = served()
    gates = {name: Gate() for name in "abc"}
    table.scripts = {name: [ScriptedBackend(gate=gate)] for name, gate in gates.items()}
    models = table.start(*(table.model(name) for name in "abc"))
    streams = []
    for name in "abc":
        with models.lease(name) as there:
            streams.append(there.submit([job(name)]))
    [closing], results = in_threads(1, lambda: models.close(drain=60.0, timeout=20))
    wait_for(lambda: {models.status(name).state for name in "abc"} == {"draining"})
    for gate in gates.values():
        gate.open()
    assert [ends(take_all(stream)) for stream in streams] == [engine.Finished] * 3
    closing.join(20)
    assert results == [True]


def test_a_server_that_ends_ends_what_still_loads(served):
    table = served()
    models = table.start(table.model("a", load="start"))
    assert models.wait_until_loaded(20)
    backend = closed()
    table.scripts["a"] = [backend]
    load = models.swap(table.model("a", max_pending=7))
    wait_for(lambda: backend.calls)
    [closing], results = in_threads(1, lambda: models.close(timeout=20))
    wait_for(lambda: load.engine.state in ("draining", "stopped"))
    backend.opening.set()
    closing.join(20)
    assert results == [True]
    with pytest.raises(engine.EngineError):
        load.wait(20)


def test_an_unload_at_once_waits_for_no_job_whatever_the_models_own_time(served):
    table = served()
    gate = Gate()
    table.scripts["a"] = [ScriptedBackend(gate=gate)]
    models = table.start(table.model("a", drain=600.0))
    with models.lease("a") as there:
        stream = there.submit([job("j")])
    load = models.unload("a", 0.0)
    assert ends(take_soon(stream)) is engine.Failed
    gate.open()
    load.wait(20)


def test_a_lease_is_given_back_once(served):
    models = (table := served()).start(table.model("a"))
    lease, other = models.lease("a"), models.lease("a")
    for _ in range(2):
        lease.release()
    assert models.status("a").num_leases == 1
    other.release()
    assert models.status("a").num_leases == 0


# What is told


def test_a_load_tells_its_seconds_and_a_name_that_serves_no_progress(served):
    table = served()
    models = table.start(table.model("a", load="start"))
    assert models.wait_until_loaded(20)
    backend = closed()
    table.scripts["a"] = [backend]
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
