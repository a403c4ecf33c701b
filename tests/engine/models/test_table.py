"""The table of models as a whole: its names, its end, and loads given up while they wait."""

import threading
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.engine.models.closing import close_all
from tests.conftest import wait_for
from tests.engine.models.asked import end_of, in_threads


def test_two_models_of_one_name_are_refused(table):
    with pytest.raises(engine.ModelError, match="two models named 'a'"):
        table.start("a", "b", "a")


def test_models_that_were_not_begun_are_not_waited_for(table):
    models = engine.Models([table.model("a")], open=table.open)
    assert models.status("a").state == "unloaded"
    with pytest.raises(RuntimeError, match="call start"):
        models.wait_until_loaded(20)


def test_a_request_without_a_name_gets_the_default_and_without_that_the_first(table):
    models = table.start(*"abc", default="b")
    assert models.get().config.name == models.status().name == models.served().config.name == "b"
    assert models.only({"a", "b"}).get().config.name == "b"
    assert models.only({"c"}).get().config.name == "c"
    models.set_default("c")
    assert models.get().config.name == "c"


def test_an_alias_of_an_alias_stays_where_that_one_pointed(table):
    models = table.start(*"ab", aliases={"x": "a"})
    with pytest.raises(engine.ModelNotFound):
        models.point("x", "c")
    assert models.point("y", "x") is None
    assert models.point("x", "b") == "a"
    assert (models.get("y").config.name, models.get("x").config.name) == ("a", "b")
    assert (models.status("a").aliases, models.status("b").aliases) == (("y",), ("x",))


def test_a_replaced_engine_counts_until_its_last_job_has_ended(table):
    gate = table.gated("a")
    models = table.start("a")
    stream, old = table.submit("a"), models.get("a")
    models.swap(table.model("a"), "beside").wait(20)
    new = models.get("a")
    assert new is not old and set(models.engines) == {old, new}
    assert models.num_jobs == models.status("a").num_jobs == 1
    gate.open()
    assert end_of(stream) is engine.Finished
    wait_for(lambda: models.engines == [new])
    assert models.num_jobs == models.status("a").num_jobs == 0


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize("is_done", [True, False])
def test_the_end_of_all_is_told_behind_the_last_and_only_if_each_was_in_time(late, is_done):
    may_end, given = threading.Event(), []

    def close(i, drain, timeout):
        given.append((drain, timeout))
        if i == late:
            assert may_end.wait(20)
        return is_done or i != late

    engines = [
        SimpleNamespace(
            config=SimpleNamespace(name=str(i)), close=lambda *times, i=i: close(i, *times)
        )
        for i in range(3)
    ]
    results = in_threads(1, lambda: close_all(engines, 5.0, 7.0))
    wait_for(lambda: len(given) == 3)  # at the same time
    assert results == [None]
    may_end.set()
    assert results.join() == [is_done] and given == [(5.0, 7.0)] * 3


def test_a_load_that_waits_for_memory_can_be_given_up(served):
    table = served(size=10, clock=lambda: table.now)  # no time passes
    models = table.start("a", "b")
    with models.lease("a"):
        results = in_threads(1, lambda: models.lease("b"))
        table.wait_for_looks()
        models.unload("b")
        assert isinstance(results.join()[0], engine.Unloaded)
    wait_for(lambda: models.status("b").state == "unloaded")
    assert table.backends[1][2].calls == [] and table.loaded() == ["a"]


@pytest.mark.parametrize("end", ["unload", "close"])
def test_a_load_that_waits_its_turn_and_is_given_up_reads_no_weights(table, end):
    backend = table.closed("a")
    models = table.start("a", "b")
    first = models.load("a")
    wait_for(lambda: backend.calls)
    second = models.load("b")
    wait_for(lambda: len(models._life._turns._turns) == 2)
    results = in_threads(1, lambda: models.unload("b") if end == "unload" else models.close(0, 20))
    wait_for(lambda: second.is_cancelled or models.is_over)
    backend.opening.set()
    for load in (first, second):
        load.wait_for_end()
    results.join()
    assert table.backends[1][2].calls == []
    assert isinstance(second.error, engine.Closed)
    assert models.status("b").state in ("unloaded", "stopped", "failed")
