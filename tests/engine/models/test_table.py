"""The table of models as a whole: its names, its end, and loads given up while they wait."""

import threading
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.engine.models.closing import close_all
from tests.engine.models.asked import closed, ends, in_threads, wait_for
from tests.engine.reading import take_all
from tests.scripted import Gate, ScriptedBackend, job


def test_two_models_of_one_name_are_refused(served):
    table = served()
    with pytest.raises(engine.ModelError, match="two models called 'a'"):
        table.start(table.model("a"), table.model("b"), table.model("a"))


def test_models_that_were_not_begun_are_not_waited_for(served):
    table = served()
    models = engine.Models([table.model("a")], open=table.open)
    assert models.status("a").state == "unloaded"
    with pytest.raises(RuntimeError, match="call start"):
        models.wait_until_loaded(20)


def test_a_request_without_a_name_gets_the_default_and_without_that_the_first(served):
    table = served()
    models = table.start(*(table.model(name) for name in "abc"), default="b")
    assert models.get().config.name == models.status().name == models.served().config.name == "b"
    assert models.only({"a", "b"}).get().config.name == "b"
    assert models.only({"c"}).get().config.name == "c"
    models.set_default("c")
    assert models.get().config.name == "c"


def test_an_alias_of_an_alias_stays_where_that_one_pointed(served):
    table = served()
    models = table.start(*(table.model(name) for name in "ab"), aliases={"x": "a"})
    assert models.point("y", "x") is None
    assert models.point("x", "b") == "a"
    assert (models.get("y").config.name, models.get("x").config.name) == ("a", "b")
    assert (models.status("a").aliases, models.status("b").aliases) == (("y",), ("x",))


def test_a_replaced_engine_counts_until_its_last_job_has_ended(served):
    table = served()
    gate = Gate()
    table.scripts["a"] = [ScriptedBackend(gate=gate)]
    models = table.start(table.model("a"))
    with models.lease("a") as old:
        stream = old.submit([job("j")])
    load = models.swap(table.model("a"), "beside")
    load.wait(20)
    new = models.get("a")
    assert new is not old and set(models.engines) == {old, new}
    assert models.num_jobs == models.status("a").num_jobs == 1
    gate.open()
    assert ends(take_all(stream)) is engine.Finished
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
    [closing], results = in_threads(1, lambda: close_all(engines, 5.0, 7.0))
    wait_for(lambda: len(given) == 3)  # at the same time
    assert closing.is_alive()
    may_end.set()
    closing.join(20)
    assert given == [(5.0, 7.0)] * 3 and results == [is_done]


def test_a_load_that_waits_for_memory_can_be_given_up(served):
    table = served(size=10, clock=lambda: table.now)  # no time passes
    models = table.start(table.model("a"), table.model("b"))
    with models.lease("a"):
        num_looks = table.look.num_looks
        [thread], results = in_threads(1, lambda: models.lease("b"))
        wait_for(lambda: table.look.num_looks > num_looks)
        models.unload("b")
        thread.join(20)
        assert isinstance(results[0], engine.Unloaded)
    wait_for(lambda: models.status("b").state == "unloaded")
    assert table.backends[1][2].calls == [] and table.loaded() == ["a"]


@pytest.mark.parametrize("end", ["unload", "close"])
def test_a_load_that_waits_its_turn_and_is_given_up_reads_no_weights(served, end):
    table = served()
    backend = closed()
    table.scripts["a"] = [backend]
    models = table.start(table.model("a"), table.model("b"))
    first = models.load("a")
    wait_for(lambda: backend.calls)
    second = models.load("b")
    wait_for(lambda: len(models._life._turns._turns) == 2)
    if end == "unload":
        models.unload("b")
        closing = []
    else:
        closing, _ = in_threads(1, lambda: models.close(timeout=20))
        wait_for(lambda: models.is_over)
    backend.opening.set()
    for load in (first, second):
        load.wait_for_end()
    for thread in closing:
        thread.join(20)
    assert table.backends[1][2].calls == []
    assert isinstance(second.error, engine.Closed)
    assert models.status("b").state in ("unloaded", "stopped", "failed")
