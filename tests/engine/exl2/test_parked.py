"""Parked jobs under an engine: loops, and a drain."""

import threading
from dataclasses import replace

import pytest

from switchyard.engine.messages import Chunk, Finished
from tests.engine.exl2.drive import GREEDY, prompt
from tests.engine.exl2.paging import SIZE
from tests.engine.forced import exl2_backend
from tests.scripted import job

LOOPING = replace(GREEDY, allowed_token_ids=(700,))


@pytest.fixture
def engine_of(make_engine, model_path):
    def engine_of(num_pages):
        backend = exl2_backend(model_path, cache_tokens=num_pages * SIZE, max_batch_size=8)
        return make_engine(backend, max_batch_size=8), backend

    return engine_of


def long(name, num_tokens, **more):
    text = prompt(ord(name), 20)
    return job(name, num_tokens, prompt=text, **{"sampling": GREEDY, "ignore_eos": True, **more})


def ends(stream):
    """The tokens and the end of each job."""
    found = {}
    while not stream.is_finished:
        for event in stream.take(20):
            token_ids, _ = found.setdefault(event.identifier, ([], None))
            if isinstance(event, Chunk):
                token_ids.extend(event.token_ids)
            elif isinstance(event, Finished):
                end = event.finish_reason, event.stop_reason, event.new_tokens
                found[event.identifier] = token_ids, end
    return found


def test_a_loop_ends_a_job_beside_parked_ones_as_it_does_alone(engine_of):
    looping = [long(name, 900, sampling=LOOPING, stop_on_loop=True) for name in "ab"]
    others = [long(name, 700) for name in "cde"]
    few, backend = engine_of(4)
    found = ends(few.submit([*others, *looping]))
    assert backend.work.preempted
    many, backend = engine_of(40)
    alone = ends(many.submit([*others, *looping]))
    assert not backend.work.preempted
    assert found == alone and found["a"][1][1] == "loop"


def test_a_drain_waits_for_parked_jobs(engine_of):
    model, _ = engine_of(4)
    stream = model.submit([long(name, 600) for name in "abcd"])
    while not any(one.state == "parked" for one in model.jobs(timeout=20)):
        assert not stream.is_finished
    closing = threading.Thread(target=model.close, args=(120.0, 20.0))
    closing.start()
    found = ends(stream)
    closing.join()
    assert {end for _, end in found.values()} == {("length", None, 600)}
