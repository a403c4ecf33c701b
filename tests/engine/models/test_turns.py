"""Changes that meet: a load while other models are unloaded or swapped, on the same GPUs or not."""

import threading

import pytest

from switchyard import engine
from tests.engine.models.asked import closed, wait_for
from tests.scripted import ScriptedBackend


def on_gpus(models, **gpus):
    for name, numbers in gpus.items():
        object.__setattr__(models.served(name).config, "gpus", numbers)


def on_first_gpu(served):
    for setting, value in (("link", "process"), ("gpus", (0,))):
        object.__setattr__(served.config, setting, value)
    return served


def wait_for_looks(table):
    """Until a load has looked for room at least once, from now on."""
    num_looks = table.look.num_looks
    wait_for(lambda: table.look.num_looks > num_looks + 1)


def opened(table, name):
    """Whether a load of the model has begun."""
    return any(one == name and backend.calls for one, _, backend in table.backends)


def test_a_load_waits_for_the_place_of_a_model_that_is_being_unloaded(served):
    table = served(max_loaded=1)
    models = table.start(table.model("a"), table.model("b"))
    on_gpus(models, a=(0,), b=(1,))
    with models.lease("a"):
        unload = models.unload("a")
        load = models.load("b")
        assert load.wait(0.1) is not None
    unload.wait(20)
    load.wait(20)
    assert table.loaded() == ["b"]


@pytest.mark.parametrize("when", ["demand", "start"])
def test_a_load_waits_for_the_memory_of_a_model_that_is_being_unloaded(served, when):
    table = served(size=20)
    models = table.start(table.model("a", load=when), table.model("b", 20))
    on_gpus(models, a=(0,), b=(1,))
    with models.lease("a"):
        assert models.wait_until_loaded(20)  # a lease of what loads with the server is there
        models.unload("a")
        load = models.load("b")
        assert load.wait(0.1) is not None
        assert not any(name == "b" and backend.calls for name, _, backend in table.backends)
    load.wait(20)
    assert table.loaded() == ["b"]


def test_a_load_waits_for_the_place_of_a_model_that_is_being_swapped(served):
    table = served(max_loaded=1)
    table.scripts["a"] = [ScriptedBackend(), new := closed()]
    models = table.start(table.model("a"), table.model("b"))
    models.lease("a").release()
    on_gpus(models, a=(0,), b=(1,))
    swap = models.swap(on_first_gpu(table.model("a", 5)), "beside")
    wait_for(lambda: new.calls)
    load = models.load("b")
    assert load.wait(0.1) is not None
    new.opening.set()
    swap.wait(20)
    load.wait(20)
    assert table.loaded() == ["b"]


def test_a_load_waits_for_the_place_of_a_model_that_is_being_loaded(served):
    table = served(max_loaded=1, clock=lambda: table.now)
    table.scripts["a"] = [backend := closed()]
    models = table.start(table.model("a"), table.model("b"))
    on_gpus(models, a=(0,), b=(1,))
    first = models.load("a")
    wait_for(lambda: backend.calls)
    load = models.load("b")
    wait_for_looks(table)
    table.now += 5.0  # a quarter of load_wait, after which what is loaded takes no requests
    wait_for_looks(table)
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
    models = table.start(table.model("a"), table.model("b"))
    on_gpus(models, a=(0,), b=(1,))
    load = models.load("b")
    assert looking.wait(20)  # behind the count of places
    with models.lease("a"):
        go_on.set()
        wait_for_looks(table)
        assert table.loaded() == ["a"] and not opened(table, "b")
    load.wait(20)
    assert table.loaded() == ["b"]


def test_models_of_the_servers_start_have_their_places_before_they_are_loaded(served):
    table = served(max_loaded=2)
    table.scripts["a"] = [backend := closed()]
    models = [table.model("a", load="start"), table.model("b"), table.model("c")]
    for number, model in enumerate(models):
        object.__setattr__(model.config, "gpus", (number,))
    table.start(*models).lease("b").release()
    table.models.lease("c").release()
    assert table.loaded() == ["c"]
    backend.opening.set()
    assert table.models.wait_until_loaded(20)
    assert table.loaded() == ["a", "c"]


def test_a_model_keeps_its_place_while_a_swap_has_ended_its_old_engine(served):
    table = served(max_loaded=1)
    table.scripts["a"] = [ScriptedBackend(), new := closed()]
    models = table.start(table.model("a"), table.model("b"))
    models.lease("a").release()
    on_gpus(models, a=(0,), b=(1,))
    swap = models.swap(on_first_gpu(table.model("a", 5)), "drain")
    wait_for(lambda: new.calls)
    load = models.load("b")
    wait_for_looks(table)
    assert not opened(table, "b")
    new.opening.set()
    swap.wait(20)
    load.wait(20)
    assert table.loaded() == ["b"]


def test_a_load_that_fails_gives_its_place_back(served):
    table = served(max_loaded=1)
    table.scripts["a"] = [ScriptedBackend(open_error=engine.ModelError("no weights"))]
    models = table.start(table.model("a"), table.model("b"))
    on_gpus(models, a=(0,), b=(1,))
    with pytest.raises(engine.ModelError):
        models.load("a").wait(20)
    models.lease("b").release()
    assert table.loaded() == ["b"]


def test_an_unload_tells_an_engine_that_loads_to_end(served):
    table, backend = served(), closed()
    table.scripts["a"] = [backend]
    models = table.start(table.model("a"))
    models.load("a")
    wait_for(lambda: backend.calls)
    [loading] = models.engines
    models.unload("a")
    wait_for(lambda: loading.state == "draining")
