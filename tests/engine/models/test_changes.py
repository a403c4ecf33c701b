"""Models are swapped, unloaded and loaded by operators, side by side."""

import gc
import weakref

import pytest

from switchyard import engine
from switchyard.engine.messages import LoadProgress
from tests.conftest import wait_for
from tests.engine.models.asked import closed, end_of, in_threads, no_room, on_gpus
from tests.engine.reading import take_all
from tests.scripted import ScriptedBackend, job


def test_a_lease_taken_before_a_swap_can_submit_behind_it(table):
    models = table.ready("a")
    lease = models.lease("a")
    load = models.swap(table.model("a", load="start", max_pending=7))
    load.wait(20)
    assert load.way == "beside"
    stream = lease.engine.submit([job("j")])
    lease.release()
    assert end_of(stream) is engine.Finished
    with models.lease("a") as new:
        assert new is not lease.engine and new.config.max_pending == 7
    wait_for(lambda: lease.engine.state == "stopped")


def test_without_memory_for_both_the_old_one_ends_first(served):
    table = served(size=15)
    gate = table.gated("a")
    models = table.ready("a")
    stream = table.submit("a")
    load = models.swap(table.model("a", load="start", max_pending=7))
    wait_for(lambda: load.is_waited_for)
    results = in_threads(3, lambda: models.lease("a"))
    wait_for(lambda: models.status("a").num_waiting == 3)
    assert len(table.backends) == 2 and table.backends[1][2].calls == []
    gate.open()
    load.wait(20)
    assert load.way == "drain"
    results.join()
    assert {lease.engine for lease in results} == {models.get("a")}
    assert models.get("a").config.max_pending == 7
    assert end_of(stream) is engine.Finished
    for lease in results:
        lease.release()


@pytest.mark.parametrize("size", [100, 15], ids=["beside", "drain"])
def test_a_failed_swap_leaves_what_was_there(served, size):
    table = served(size=size)
    models = table.ready("a", max_pending=7)
    table.fail("a")
    load = models.swap(table.model("a", load="start", max_pending=8))
    with pytest.raises(engine.ModelError, match="no weights") as told:
        load.wait(20)
    assert ("loaded again" in str(told.value)) == (size == 15)
    with models.lease("a") as there:
        assert there.config.max_pending == 7
        assert end_of(there.submit([job("j")])) is engine.Finished
    assert models.status("a").state == "ready"


def test_the_progress_of_a_load_stays_while_it_is_tried_again(served):
    first, second = closed(engine.NoRoom("too little after all")), closed()
    table = served(size=20)
    table.scripts["b"] = [first, second]
    models = table.start("a", "b")
    table.use("a")
    load = models.load("b")
    wait_for(lambda: load.engine is not None)
    one = load.engine
    one.deliver([LoadProgress(0.6)])
    assert load.progress == 0.6
    first.opening.set()
    wait_for(lambda: load.engine is not one)
    assert table.loaded() == []  # the idle one has gone for it
    assert load.wait(0.0) == load.progress == models.status("b").progress == 0.6
    for share, told in ((0.5, 0.6), (0.7, 0.7)):
        load.engine.deliver([LoadProgress(share)])
        assert load.progress == told
    second.opening.set()
    load.wait(20)


def test_settings_that_a_model_could_not_be_loaded_with_are_not_its_own(table):
    """Nor does a load that names none try them again."""
    table.scripts["a"] = [ScriptedBackend(), no_room("too large")]
    models = table.start(table.model("a", load="manual", max_pending=7))
    with pytest.raises(engine.NoRoom, match="too large"):
        models.swap(table.model("a", load="manual", max_pending=8)).wait(20)
    assert models.status("a").state == "failed"
    assert "too large" in str(models.status("a").error)
    models.load("a").wait(20)
    assert models.get("a").config.max_pending == 7 and table.loaded() == ["a"]


def test_a_model_is_the_default_once_it_is_loaded_and_not_before(table):
    table.scripts["b"] = [ScriptedBackend(), no_room()]  # of the table, and of the swap
    models = table.ready("a", table.model("b", load="manual"))
    new = table.model("b", load="manual", max_pending=7)
    with pytest.raises(engine.NoRoom):
        models.swap(new, is_default=True).wait(20)
    assert models.status().name == "a"
    models.swap(new, is_default=True).wait(20)
    assert models.status().name == "b"


@pytest.mark.parametrize("way", [None, "drain"])
def test_a_swap_that_can_never_fit_is_refused_before_the_old_one_ends(served, way):
    table = served(size=15)
    models = table.ready("a")
    old = models.get("a")
    with pytest.raises(engine.NoRoom, match="even if others are unloaded: it needs"):
        models.swap(table.model("a", size=16), way).wait(20)
    assert models.get("a") is old and models.status("a").state == "ready"
    assert models.status("a").error is None


def test_two_changes_of_one_name_at_once_are_refused(table):
    models = table.ready("a")
    backend = table.closed("a")
    load = models.swap(table.model("a"))
    with pytest.raises(engine.LoadUnderWay):
        models.swap(table.model("a"))
    with pytest.raises(engine.LoadUnderWay):
        models.unload("a")
    backend.opening.set()
    load.wait(20)
    assert not models._entries["a"].was_unloaded  # else it would not come back after a loss


@pytest.mark.parametrize("change", ["load", "swap"])
def test_a_load_behind_an_unload_waits_for_its_end(table, change):
    gate = table.gated("a")
    models = table.ready("a")
    old = models.get("a")
    stream = old.submit([job("j")])
    unload = models.unload("a")
    with pytest.raises(engine.LoadUnderWay):
        models.unload("a")
    load = models.load("a") if change == "load" else models.swap(table.model("a", max_pending=7))
    with pytest.raises(engine.LoadUnderWay):
        models.load("a")
    assert load.wait(0.05) is not None and len(table.backends) == 1
    gate.open()
    unload.wait(20)
    load.wait(20)
    assert end_of(stream) is engine.Finished
    assert models.get("a") is not old and models.status("a").state == "ready"
    assert models.get("a").config.max_pending == (7 if change == "swap" else old.config.max_pending)


def test_an_unload_ends_behind_the_last_job_and_a_load_that_is_under_way(table, caplog):
    caplog.set_level("INFO")
    gate, waiting = table.gated("a"), closed()
    table.scripts["a"].append(waiting)
    models = table.start(table.model("a", load="manual"))
    models.load("a").wait(20)
    stream = table.submit("a")
    unload = models.unload("a")
    assert unload.wait(0.05) is not None
    gate.open()
    unload.wait(20)
    assert end_of(stream) is engine.Finished
    assert models.status("a").state == "unloaded"
    load = models.load("a")
    wait_for(lambda: waiting.calls)
    models.unload("a")
    waiting.opening.set()
    with pytest.raises(engine.EngineError):
        load.wait(20)
    assert models.status("a").state == "unloaded"
    assert caplog.messages.count("model a is unloaded") == 2


def test_counts_go_on_over_unload_and_swap(table):
    models = table.start("a")
    take_all(table.submit("a"))
    wait_for(lambda: models.get("a").standing.stats.totals.new_tokens)
    before = models.get("a").standing.stats.totals.new_tokens
    models.unload("a").wait(20)
    assert models.get("a").standing.stats.totals.new_tokens == before
    models.load("a").wait(20)
    assert models.get("a").standing.stats.totals.new_tokens == before
    models.swap(table.model("a", max_pending=7)).wait(20)
    take_all(table.submit("a"))
    wait_for(lambda: models.get("a").standing.stats.totals.new_tokens == 2 * before)


def test_a_server_that_ends_lets_nobody_wait(table):
    table.closed("a")
    models = table.start("a")
    results = in_threads(2, lambda: models.lease("a"))
    wait_for(lambda: models.status("a").num_waiting == 2)
    models.drain()
    results.join()
    for lease in results:
        with lease, pytest.raises(engine.Refused):
            lease.engine.submit([job("j")])


def test_models_on_other_gpus_load_at_the_same_time(table):
    first, second, third = map(table.closed, "abc")
    models = table.start(*"abc")
    on_gpus(models, a=(0,), b=(1,), c=(0, 1))
    loads = [models.load("a"), models.load("b")]
    wait_for(lambda: first.calls and second.calls)
    loads.append(models.load("c"))
    first.opening.set()
    loads[0].wait(20)
    assert loads[2].wait(0.05) is not None and not third.calls
    second.opening.set()
    wait_for(lambda: third.calls)
    third.opening.set()
    loads[2].wait(20)


@pytest.mark.parametrize(("first", "second"), [((), (0,)), ((1,), ()), ((), ())])
def test_a_model_of_all_gpus_loads_at_no_other_s_time(table, first, second):
    backends = [*map(table.closed, "ab")]
    models = table.start(*"ab")
    on_gpus(models, a=first, b=second)
    loads = [models.load("a")]
    wait_for(lambda: backends[0].calls)
    loads.append(models.load("b"))
    assert loads[1].wait(0.05) is not None and not backends[1].calls
    for load, backend in zip(loads, backends, strict=True):
        backend.opening.set()
        load.wait(20)


@pytest.mark.parametrize(("is_loaded", "is_swapped"), [(False, False), (False, True), (True, True)])
def test_why_a_model_could_not_be_loaded_is_logged_once(table, caplog, is_loaded, is_swapped):
    if not is_swapped:
        table.fail("a")
    models = table.start("a")
    if is_loaded:
        table.use("a")
    if is_swapped:
        table.fail("a")
    with pytest.raises(engine.ModelError, match="no weights"):
        (models.swap(table.model("a")) if is_swapped else models.load("a")).wait(20)
    assert caplog.text.count("no weights") == 1


def test_the_models_of_a_server_share_the_time_to_wait_for_them(table, monkeypatch):
    given = []
    models = table.ready("a", table.model("b", load="start"))

    def wait(model, timeout):
        given.append(timeout)
        return True

    monkeypatch.setattr(engine.Engine, "wait_until_loaded", wait)
    assert models.wait_until_loaded(20)
    assert 20 >= given[0] > given[1]


def test_what_could_not_be_loaded_leaves_no_engine_behind(table):
    table.scripts["a"] = [ScriptedBackend(open_error=ValueError(f"fault {i}")) for i in range(3)]
    models = table.start("a")
    kept = []
    for i in range(3):
        load = models.load("a")
        wait_for(lambda load=load: load.is_done)
        assert f"fault {i}" in str(load.error)
        kept.append(weakref.ref(models.get("a")))
    wait_for(lambda: gc.collect() >= 0 and [one() is None for one in kept] == [True, True, False])
