"""The bug that this server exists for, and that it isn't in it: on the real generator."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from switchyard.engine.backends.exl.results import TokenTold
from switchyard.engine.messages import Chunk
from tests.engine.exl2.drive import GREEDY, prompt
from tests.engine.forced import ending, exl2_backend, run
from tests.engine.reading import take_all, text
from tests.scripted import job

pytestmark = pytest.mark.over_exl3("hardship")

NUM_THREADS = 200


@pytest.fixture(scope="module")
def jobs():
    return [
        job(f"job{i}", 12, prompt=prompt(i, 20 + i), sampling=GREEDY, ignore_eos=True)
        for i in range(NUM_THREADS)
    ]


@pytest.fixture(scope="module")
def alone(backend, jobs):
    """The text of each job's prompt by itself."""
    return {j.identifier: ending(run(backend, j)[j.identifier]).text for j in jobs}


def test_threads_that_each_iterate_get_each_others_text(opened, jobs, alone):
    """Two request threads on the bare generator, as a threaded Flask view would do it: enqueue,
    then iterate and collect until one's own job ends. They take turns, so the generator itself
    is never entered twice; the results still go to whoever happens to call.
    """
    backend = opened()
    generator, turn = backend._generator, threading.Barrier(2)
    texts = {}

    def request(one, first):
        pieces = []
        for step in range(2):
            if (step == 0) == first:
                generator.enqueue(backend._make_job(one))
            turn.wait(60)
        for step in range(2 * one.max_new_tokens):
            if (step % 2 == 0) == first:
                told = [one for one in generator.iterate() if isinstance(one, TokenTold)]
                pieces += [one.chunk.text for one in told]
            turn.wait(60)
        texts[one.identifier] = "".join(pieces)

    pair = jobs[:2]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(request, pair, (True, False)))
    mixed = [texts[one.identifier] != alone[one.identifier] for one in pair]
    assert mixed == [True, True]


def test_request_threads_of_an_engine_get_only_their_own_text(make_engine, model_path, jobs, alone):
    backend = exl2_backend(model_path)
    model = make_engine(backend, max_pending=NUM_THREADS)
    callers = set()
    iterate = backend._generator.iterate

    def noted_iterate():
        callers.add(threading.current_thread().name)
        return iterate()

    backend._generator.iterate = noted_iterate
    barrier = threading.Barrier(NUM_THREADS)
    texts = {}

    def request(one):
        barrier.wait(60)
        stream = model.submit([one])
        events = take_all(stream)
        assert {event.identifier for event in events} == {one.identifier}
        texts[one.identifier] = text(e for e in events if isinstance(e, Chunk))

    with ThreadPoolExecutor(NUM_THREADS) as threads:
        list(threads.map(request, jobs))
    assert texts == alone
    assert len(set(alone.values())) > NUM_THREADS / 2
    assert callers == {"engine-scripted"}
