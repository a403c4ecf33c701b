"""The generator over an EXL3 model, which a plain Llama stands in for: the same jobs, the same
texts as over that Llama itself. Tests marked `over_exl3` are the others of this adapter.
"""

import pytest

from switchyard.engine.messages import Chunk
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import GREEDY, prompt
from tests.engine.forced import exl2_backend, run
from tests.scripted import job

PAIR = {"negative_prompt": prompt(9, 30), "sampling": Sampling(temperature=0.0, cfg_scale=2.0)}


@pytest.fixture(params=[False, True], ids=["in turn", "overlapping"])
def is_overlapping(request):
    return request.param


@pytest.fixture
def both(model_path, is_overlapping):
    """The backend for EXL3, and that for EXL2 over the same Llama."""
    opened = [
        exl2_backend(model_path, is_overlapping=is_overlapping, library=library)
        for library in ("exl3", "exl2")
    ]
    for backend in opened:
        backend.open()
    yield opened
    for backend in opened:
        backend.close()


def told(events):
    """What clients get of each job, whatever the steps."""
    found = {}
    for name, job_events in events.items():
        chunks = [event for event in job_events if isinstance(event, Chunk)]
        token_ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
        logprobs = [
            (one.token_id, round(one.logprob, 3))
            for chunk in chunks
            for one in chunk.logprobs or ()
        ]
        found[name] = token_ids, logprobs, type(job_events[-1])
    return found


def test_jobs_have_the_texts_that_they_have_over_the_model_itself(both):
    """Prompts below, at and beyond a page; the second round finds pages, and copies the beginning
    of one.
    """
    rounds = [
        [job(f"job{n}", 24, prompt=prompt(n, n), sampling=GREEDY) for n in (5, 255, 256, 257, 600)],
        [
            job("pair", 24, prompt=prompt(600, 600), **PAIR),
            job("same", 24, prompt=prompt(600, 600), sampling=GREEDY, num_logprobs=2),
            job("half", 24, prompt=prompt(600, 400) + prompt(1, 60), sampling=GREEDY),
            job("seeded", 24, prompt=prompt(3, 40), sampling=Sampling(temperature=1.5, seed=3)),
        ],
    ]
    for jobs in rounds:
        exl3, exl2 = (told(run(backend, *jobs)) for backend in both)
        assert exl3 == exl2
