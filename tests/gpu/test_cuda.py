"""The same backend on a GPU."""

import operator
import re
import threading

import pytest

from switchyard import engine
from switchyard.engine.backends import make_backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.grammar import constraints
from switchyard.engine.messages import Failed, Finished, PromptLogprobs
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import GREEDY, free_pages, prompt, texts_of
from tests.engine.forced import ending, run
from tests.engine.test_logprobs import direct_logprobs, told
from tests.scripted import job

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def no_thread_is_left():
    """After a single test some are: the generator's sampling threads. `backend` checks last."""


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
    lengths = [20 + 17 * i for i in range(32)]
    together = texts_of(backend, 32, lengths)
    jobs = [
        job("a", 32, prompt=prompt(i, n), sampling=GREEDY, ignore_eos=True)
        for i, n in enumerate(lengths)
    ]
    alone = [ending(run(backend, one)["a"]).text for one in jobs]
    same = sum(map(operator.eq, alone, together))
    print(f"{same} of {len(jobs)} texts are the same")
    assert same >= 24
    assert len(set(alone)) > 24
    assert free_pages(backend) == backend._generator.max_pages


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"sampling": Sampling(allowed_token_ids=(5,), banned_token_ids=(5,))}, engine.InvalidJob),
        ({"prompt": (1, 999_999, 2)}, engine.JobFailed),
    ],
    ids=["sampler", "prefill"],
)
def test_a_jobs_own_fault_ends_that_job_alone(backend, broken, expected):
    others = [job(f"job{i}", 15, prompt=prompt(i, 300), sampling=GREEDY) for i in range(3)]
    events = run(backend, others[0], job("broken", 15, **broken), *others[1:])
    last = events["broken"][-1]
    assert isinstance(last, Failed) and isinstance(last.error, expected)
    assert all(isinstance(events[other.identifier][-1], Finished) for other in others)
    assert free_pages(backend) == backend._generator.max_pages


def test_a_prompt_seen_before_is_not_computed_again(backend):
    one = job("a", 2, prompt=prompt(60, 900), sampling=GREEDY)
    assert [run(backend, one)["a"][-1].cached_tokens for _ in range(2)][1] == 899


def test_the_filters_run_before_the_draw(backend):
    def text(**sampling):
        one = job("x", 30, prompt=prompt(5, 50), sampling=Sampling(seed=1, **sampling))
        return ending(run(backend, one)["x"]).text

    greedy = text(temperature=0.0)
    assert text(temperature=3.0, top_p=0.0) == greedy
    assert text(temperature=3.0, top_k=1) == greedy
    assert text(temperature=3.0, min_p=1.0) == greedy
    assert text(temperature=3.0) != greedy
    assert text(temperature=3.0, top_p=0.9) == text(temperature=3.0, top_p=0.9)


def test_logprobs_are_those_of_a_direct_pass_within_float16(backend, model_path):
    one = job("x", 8, prompt=prompt(7, 400), prompt_logprobs=1, num_logprobs=3, sampling=GREEDY)
    events = run(backend, one)["x"]
    [scores] = [event.logprobs for event in events if isinstance(event, PromptLogprobs)]
    ids, drawn = told(events)
    token_ids = [*one.prompt, *ids]
    rows = direct_logprobs(model_path)(token_ids)
    expected = [rows[i - 1][token_ids[i]].item() for i in range(1, len(token_ids))]
    found = [entry.logprob for entry in [*scores[1:], *drawn]]
    assert found == pytest.approx(expected, abs=0.05)


LENGTHS = (1, 2, 31, 32, 33, 34, 129, 257, 258, 400, 513, 514, 700, 1025, 1026, 1500, 2040)


@pytest.mark.parametrize("together", [False, True])
def test_prompts_of_any_length_are_computed_as_in_a_direct_pass(backend, model_path, together):
    jobs = [
        job(f"job{n}", 2, prompt=prompt(n, n), num_logprobs=3, sampling=GREEDY, ignore_eos=True)
        for n in LENGTHS
    ]
    if together:
        events = run(backend, *jobs)
    else:
        events = {one.identifier: run(backend, one)[one.identifier] for one in jobs}
    for one in jobs:
        token_ids, drawn = told(events[one.identifier])
        rows = direct_logprobs(model_path)([*one.prompt, *token_ids])
        expected = [rows[len(one.prompt) - 1 + i][t].item() for i, t in enumerate(token_ids)]
        assert [entry.logprob for entry in drawn] == pytest.approx(expected, abs=0.05)
    assert free_pages(backend) == backend._generator.max_pages


def check_constraint(backend, prompt=prompt):
    """It holds beside jobs that have none."""
    form = constraints.regex("[a-f]{3}-[0-9]{4}")
    hot = Sampling(temperature=1.5, seed=1)
    jobs = [job(f"free{i}", 20, prompt=prompt(i, 60), sampling=hot) for i in range(8)]
    for i in range(8):
        jobs.append(job(f"b{i}", 40, prompt=prompt(i, 50), sampling=hot, constraint=form))
    events = run(backend, *jobs)
    assert all(isinstance(events[one.identifier][-1], Finished) for one in jobs)
    for one in jobs[8:]:
        assert re.fullmatch("[a-f]{3}-[0-9]{4}", ending(events[one.identifier]).text)
    assert free_pages(backend) == backend._generator.max_pages


def test_a_constraint_holds_on_a_gpu_beside_free_jobs(backend):
    check_constraint(backend)


def test_guidance_by_a_negative_prompt_changes_the_text(backend):
    def text(**more):
        scale = Sampling(temperature=0.0, cfg_scale=4.0 if more else 1.0)
        one = job("x", 30, prompt=prompt(5, 700), sampling=scale, **more)
        return ending(run(backend, one)["x"]).text

    guided = text(negative_prompt=prompt(6, 600))
    assert guided == text(negative_prompt=prompt(6, 600)) != text()
    assert free_pages(backend) == backend._generator.max_pages


def test_every_setting_of_the_sampler_is_drawn_from_on_a_gpu(backend):
    settings = [
        {"top_k": 5, "top_p": 0.9, "min_p": 0.05, "top_a": 0.1, "tfs": 0.9, "typical_p": 0.9},
        {"xtc_probability": 0.5, "dry_multiplier": 0.8, "smoothing_factor": 0.3, "skew": 0.5},
        {"mirostat": True, "repetition_penalty": 1.2, "frequency_penalty": 0.5},
        {"dynatemp_low": 0.5, "dynatemp_high": 1.5, "logit_bias": ((5, 3.0),)},
        {"banned_token_ids": (5, 6), "presence_penalty": -0.5, "temperature_last": True},
    ]
    jobs = [
        job(f"job{i}", 30, prompt=prompt(i, 50), sampling=Sampling(seed=i, **more))
        for i, more in enumerate(settings)
    ]
    together = run(backend, *jobs)
    assert all(isinstance(together[one.identifier][-1], Finished) for one in jobs)
