"""Changes that meet: a load while other models are unloaded or swapped, on the same GPUs or not."""

import threading

import pytest

from switchyard import engine
from tests.conftest import wait_for
from tests.engine.models.asked import closed, on_gpus
from tests.scripted import ScriptedBackend


def on_first_gpu(served):
    for setting, value in (("link", "process"), ("gpus", (0,))):
        object.__setattr__(served.config, setting, value)
    return served


def opened(table, name):
    """Whether a load of the model has begun."""
    return any(one == name and backend.calls for one, _, backend in table.backends)


@pytest.mark.parametrize(
    ("options", "when"),
    [({"max_loaded": 1}, "demand"), ({"size": 20}, "demand"), ({"size": 20}, "start")],
)
def test_a_load_waits_for_the_room_of_a_model_that_is_being_unloaded(served, options, when):
    table = served(**options)
    models = table.start(table.model("a", load=when), table.model("b", 20))
    on_gpus(models, a=(0,), b=(1,))
    with models.lease("a"):
        assert models.wait_until_loaded(20)  # a lease of what loads with the server is there
        unload = models.unload("a")
        load = models.load("b")
        assert load.wait(0.1) is not None and not opened(table, "b")
    unload.wait(20)
    load.wait(20)
    assert table.loaded() == ["b"]


@pytest.mark.parametrize("way", ["beside", "drain"])
def test_a_load_waits_for_the_place_of_a_model_that_is_being_swapped(served, way):
    """By a drain, the old engine has ended."""
    table = served(max_loaded=1)
    table.scripts["a"] = [ScriptedBackend(), new := closed()]
    models = table.start("a", "b")
    table.use("a")
    on_gpus(models, a=(0,), b=(1,))
    swap = models.swap(on_first_gpu(table.model("a", 5)), way)
    wait_for(lambda: new.calls)
    load = models.load("b")
    table.wait_for_looks(2)
    assert not opened(table, "b")
    new.opening.set()
    swap.wait(20)
    load.wait(20)
    assert table.loaded() == ["b"]


def test_a_load_waits_for_the_place_of_a_model_that_is_being_loaded(served):
    table = served(max_loaded=1, clock=lambda: table.now)
    backend = table.closed("a")
    models = table.start("a", "b")
    on_gpus(models, a=(0,), b=(1,))
    first = models.load("a")
    wait_for(lambda: backend.calls)
    load = models.load("b")
    table.wait_for_looks(2)
    table.now += 5.0  # a quarter of load_wait, after which what is loaded takes no requests
    table.wait_for_looks(2)
    assert not opened(table, "b")
    assert models._entries["a"].yields_to is None  # whose requests wait for it, too
    backend.opening.set()
    first.wait(20)
    load.wait(20)
    assert table.loaded() == ["b"]


def test_a_place_is_not_taken_twice_by_loads_that_look_at_the_same_time(served):
    table = served(max_loaded=1)
    looking, go_on, free = threading.Event(), threading.Event(), table.look.free

    def look(places):
        if threading.current_thread().name == "load-b" and not go_on.is_set():
            looking.set()
            go_on.wait(20)
        return free(places)

    table.look.free = look
    models = table.start("a", "b")
    on_gpus(models, a=(0,), b=(1,))
    load = models.load("b")
    assert looking.wait(20)  # behind the count of places
    with models.lease("a"):
        go_on.set()
        table.wait_for_looks(2)
        assert table.loaded() == ["a"] and not opened(table, "b")
    load.wait(20)
    assert table.loaded() == ["b"]


def test_models_of_the_servers_start_have_their_places_before_they_are_loaded(served):
    table = served(max_loaded=2)
    backend = table.closed("a")
    models = [table.model("a", load="start"), table.model("b"), table.model("c")]
    for number, model in enumerate(models):
        object.__setattr__(model.config, "gpus", (number,))
    table.start(*models)
    table.use("b", "c")
    assert table.loaded() == ["c"]
    backend.opening.set()
    assert table.models.wait_until_loaded(20)
    assert table.loaded() == ["a", "c"]


def test_a_load_that_fails_gives_its_place_back(served):
    table = served(max_loaded=1)
    table.fail("a")
    models = table.start("a", "b")
    on_gpus(models, a=(0,), b=(1,))
    with pytest.raises(engine.ModelError):
        models.load("a").wait(20)
    table.use("b")
    assert table.loaded() == ["b"]


def test_an_unload_tells_an_engine_that_loads_to_end(table):
    backend = table.closed("a")
    models = table.start("a")
    models.load("a")
    wait_for(lambda: backend.calls)
    [loading] = models.engines
    models.unload("a")
    wait_for(lambda: loading.state == "draining")
