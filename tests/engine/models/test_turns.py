"""Changes that meet: a load while other models are unloaded or swapped, on the same GPUs or not."""

import pytest

from tests.engine.models.asked import closed, wait_for
from tests.scripted import ScriptedBackend


def on_gpus(models, **gpus):
    for name, numbers in gpus.items():
        object.__setattr__(models.served(name).config, "gpus", numbers)


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
        wait_for(lambda: table.loaded() == ["a"])  # a lease of what loads with the server is there
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
    new_model = table.model("a", 5)
    for setting, value in (("link", "process"), ("gpus", (0,))):
        object.__setattr__(new_model.config, setting, value)
    swap = models.swap(new_model, "beside")
    wait_for(lambda: new.calls)
    load = models.load("b")
    assert load.wait(0.1) is not None
    new.opening.set()
    swap.wait(20)
    load.wait(20)
    assert table.loaded() == ["b"]
