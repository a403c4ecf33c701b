"""The same backend on a GPU."""

import threading

import pytest

import engine
from engine.backends import make_backend
from engine.config import ModelConfig
from engine.messages import Failed, Finished, Sampling
from tests.engine.forced import ending, run
from tests.engine.test_exl2 import GREEDY, free_pages, prompt
from tests.scripted import job

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """Of a single test, some are: the generator's sampling threads. `backend` looks at the end."""


@pytest.fixture(scope="module")
def backend(model_path):
    before = set(threading.enumerate())
    backend = make_backend(ModelConfig(path=model_path, name="gpu", device="cuda"))
    info = backend.open()
    assert info.device == "cuda"
    yield backend
    backend.close()
    assert set(threading.enumerate()) <= before


def test_jobs_in_a_batch_give_the_texts_that_they_give_alone(backend):
    """float16 kernels differ a little with the batch, so a few texts may part at some token."""
    jobs = [
        job(f"job{i}", 32, prompt=prompt(i, 20 + 17 * i), sampling=GREEDY, ignore_eos=True)
        for i in range(32)
    ]
    together = run(backend, *jobs)
    alone = [ending(run(backend, one)[one.identifier]).text for one in jobs]
    same = sum(a == ending(together[j.identifier]).text for a, j in zip(alone, jobs, strict=True))
    print(f"{same} of {len(jobs)} texts are the same")
    assert same >= 24
    assert len(set(alone)) > 24
    assert free_pages(backend) == backend._generator.max_pages


@pytest.mark.parametrize(
    "broken",
    [{"sampling": Sampling(temperature=None)}, {"prompt": (1, 999_999, 2)}],
    ids=["sampler", "prefill"],
)
def test_a_jobs_own_fault_ends_that_job_alone(backend, broken):
    others = [job(f"job{i}", 15, prompt=prompt(i, 300), sampling=GREEDY) for i in range(3)]
    events = run(backend, others[0], job("broken", 15, **broken), *others[1:])
    last = events["broken"][-1]
    assert isinstance(last, Failed) and isinstance(last.error, engine.JobFailed)
    assert all(isinstance(events[other.identifier][-1], Finished) for other in others)
    assert free_pages(backend) == backend._generator.max_pages


def test_a_prompt_seen_before_is_not_computed_again(backend):
    run(backend, job("a", 2, prompt=prompt(60, 900), sampling=GREEDY))
    assert (
        run(backend, job("b", 2, prompt=prompt(60, 900), sampling=GREEDY))["b"][-1].cached_tokens
        == 899
    )


def test_the_filters_run_before_the_compiled_sampler(backend):
    def text(**sampling):
        one = job("x", 30, prompt=prompt(5, 50), sampling=Sampling(seed=1, **sampling))
        return ending(run(backend, one)["x"]).text

    greedy = text(temperature=0.0)
    assert text(temperature=3.0, top_p=0.0) == greedy
    assert text(temperature=3.0, top_k=1) == greedy
    assert text(temperature=3.0, min_p=1.0) == greedy
    assert text(temperature=3.0) != greedy
    assert text(temperature=3.0, top_p=0.9) == text(temperature=3.0, top_p=0.9)
