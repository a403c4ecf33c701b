"""What is closed lets go of its memory."""

import gc
import weakref

import pytest

from switchyard.engine import open_engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.engine import Engine
from tests.conftest import DEMO
from tests.engine.exl2.drive import GREEDY, prompt
from tests.engine.forced import exl2_backend, run
from tests.scripted import job


def held_by(backend):
    """References to all that is large, which keep nothing alive."""
    generator, loaded = backend._generator, backend._loaded
    models = [model for model in (loaded.model, loaded.draft_model) if model is not None]
    caches = [cache for cache in (loaded.cache, loaded.draft_cache) if cache is not None]
    tensors = [cache.states[0] for cache in caches]
    tensors += [model._weights.layers[0].qkv for model in models]
    things = [generator, generator.all_pages[0], generator.logits_pinned]
    return [weakref.ref(thing) for thing in [*things, *models, *caches, *tensors]]


@pytest.mark.parametrize("config", [{}, {"ngram_draft": True}, {"draft_model": "self"}], ids=str)
def test_nothing_of_a_closed_backend_stays_alive(model_path, config):
    if "draft_model" in config:
        config = {"draft_model": model_path}
    backend = exl2_backend(model_path, **config)
    backend.open()
    jobs = [job(f"job{i}", 5, prompt=prompt(i, 300), sampling=GREEDY) for i in range(3)]
    run(backend, *jobs[:2])
    backend.enqueue(jobs[2])
    backend.iterate()
    references = held_by(backend)
    backend.close()
    assert [reference() for reference in references if reference() is not None] == []


def test_nothing_of_a_backend_that_fails_to_open_stays_alive(model_path, monkeypatch):
    def fail(self, *_):
        references.extend(held_by(self))
        raise RuntimeError("no proof")

    references = []
    backend = exl2_backend(model_path)
    monkeypatch.setattr("switchyard.engine.backends.exl2.backend.Exl2Backend._prove", fail)
    with pytest.raises(RuntimeError, match="no proof"):
        backend.open()
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []
    assert references


def test_nothing_of_a_closed_engine_stays_alive(monkeypatch):
    backends = []
    from switchyard.engine.models import opening

    make_backend = opening.make_backend

    def make(*args):
        backends.append(make_backend(*args))
        return backends[-1]

    monkeypatch.setattr(opening, "make_backend", make)
    engine: Engine = open_engine(ModelConfig(DEMO, "demo", link="thread"))
    engine.start()
    assert engine.wait_until_loaded(60)
    references = held_by(backends[0])
    assert engine.close(timeout=20)
    backends.clear()
    gc.collect()
    assert [reference() for reference in references if reference() is not None] == []
