"""A fault of one job ends that job alone, over the real generator."""

import math

import pytest
import torch

from switchyard import engine
from switchyard.engine.messages import Failed, Finished
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import GREEDY, Rule, free_pages, prompt
from tests.engine.forced import ending, run
from tests.scripted import Panic, job

pytestmark = pytest.mark.over_exl3("hardship")


@pytest.mark.over_exl3("always")
@pytest.mark.parametrize(
    "broken",
    [
        {"sampling": Sampling(top_k=40, min_p="x")},  # the sampler refuses
        {"sampling": Sampling(repetition_penalty="x")},  # the penalty refuses
        {"prompt": (1, 999_999, 2)},  # prefill fails: no such embedding
    ],
    ids=["sampler", "penalty", "prefill"],
)
def test_a_jobs_own_fault_ends_that_job_alone(backend, broken):
    others = [job(f"job{i}", 15, prompt=prompt(i, 300), sampling=GREEDY) for i in range(3)]
    alone = {o.identifier: ending(run(backend, o)[o.identifier]).text for o in others}
    events = run(backend, others[0], job("broken", 15, **broken), *others[1:])
    last = events["broken"][-1]
    assert isinstance(last, Failed) and isinstance(last.error, engine.JobFailed)
    assert sum(isinstance(e, Failed | Finished) for e in events["broken"]) == 1
    assert {o.identifier: ending(events[o.identifier]).text for o in others} == alone
    assert free_pages(backend) == backend._generator.max_pages


def refuse(error):
    """Refuses prompts with token 900."""

    def before(input_ids, is_prefill):
        if is_prefill and (input_ids == 900).any():
            raise error

    return before


@pytest.mark.parametrize(
    ("error", "kind", "others"),
    [
        (RuntimeError("no such prompt"), engine.JobFailed, (1, 8, 2)),  # in the same pass
        (RuntimeError("misaligned address"), engine.JobFailed, (1, 8, 2)),  # no lost device
        (MemoryError("none left"), engine.OutOfMemory, (1,)),
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), engine.OutOfMemory, (1,)),
    ],
    ids=repr,
)
def test_a_prompt_that_fails_beside_others_ends_its_job_alone(forced, error, kind, others):
    backend = forced(lambda t: {5: 0.0}, refuse(error))
    events = run(backend, job("bad", 3, prompt=(1, 900, 2)), job("good", 3, prompt=others))
    assert type(events["bad"][-1].error) is kind and str(error) in str(events["bad"][-1].error)
    assert events["good"][-1].new_tokens == 3


def test_prompts_that_find_no_memory_together_are_tried_again(forced, is_overlapping):
    """Alone they would find it, and each later pass of as many would not."""
    left = [torch.OutOfMemoryError("none left")]

    def before(input_ids, is_prefill):
        if is_prefill and len(input_ids) == 2 and left:
            raise left.pop()

    backend = forced(lambda t: {5: 0.0}, before)
    events = run(backend, *(job(name, 3, prompt=(1, 8, 2)) for name in ("a", "b")))
    assert [events[name][-1].new_tokens for name in ("a", "b")] == [3, 3]
    assert backend.work.retries == (1 if is_overlapping else 0)


def test_a_job_that_the_generator_will_not_take_is_rejected(backend):
    with pytest.raises(engine.InvalidJob, match="AssertionError"):
        backend.enqueue(job("empty", prompt=()))
    assert not backend._jobs


@pytest.mark.parametrize("number", [0, 3])
def test_a_prompt_is_not_scored_where_there_are_no_pages(forced, number):
    backend = forced(lambda t: {5: 0.0})
    backend._generator.paged = False
    with pytest.raises(engine.InvalidJob, match="needs flash-attn") as caught:
        backend.enqueue(job("a", prompt=(1, 2), prompt_logprobs=number))
    assert caught.value.param == "prompt_logprobs"


@pytest.mark.parametrize("sampling", [Sampling(), GREEDY, Sampling(top_p=0.9, seed=1)], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_numbers_end_that_job_alone(forced, sampling, value):
    backend = forced(lambda t: {7: value} if t == 9 else {5: 0.0})
    bad = job("bad", 5, prompt=(1, 9), sampling=sampling)
    events = run(backend, bad, job("good", 5, prompt=(1, 2)))
    last = events["bad"][-1]
    assert isinstance(last, Failed) and isinstance(last.error, engine.JobFailed)
    assert str(last.error) == "the model's logits are not numbers"
    assert events["good"][-1].new_tokens == 5


@pytest.mark.parametrize("ngram_draft", [False, True])
def test_a_draw_that_fails_ends_its_job_alone(forced, ngram_draft):
    def before(input_ids, is_prefill):
        assert (input_ids >= 0).all()  # on a GPU, another id ends the process

    backend = forced(lambda t: {5: 0.0}, before, ngram_draft=ngram_draft)
    refused = job("refused", 5, sampling=Sampling(top_k=40, min_p="x"))
    none_left = job("none", 5, sampling=Sampling(allowed_token_ids=(5,), banned_token_ids=(5,)))
    events = run(backend, refused, none_left, job("good", 5))
    assert isinstance(events["refused"][-1].error, engine.JobFailed)
    assert isinstance(events["none"][-1].error, engine.InvalidJob)  # its own fault: 400
    assert str(events["none"][-1].error) == "no token is left to choose from: all are banned"
    assert events["good"][-1].new_tokens == 5 and backend.work.retries == 0


def test_a_job_that_fails_behind_its_result_tells_its_failure_alone(backend):
    def fail(*args, **more):
        raise ArithmeticError("no text")

    backend.enqueue(job("x", 5, sampling=GREEDY, ignore_eos=True))
    backend.iterate()
    backend._jobs["x"]._detokenizer.push = fail
    [event] = backend.iterate()
    assert isinstance(event, Failed) and "no text" in str(event.error)
    assert free_pages(backend) == backend._generator.max_pages


def panic(*arguments, **settings):
    raise Panic("unreachable code")


@pytest.mark.parametrize("ngram_draft", [False, True])
@pytest.mark.parametrize("where", ["limit", "accept", "push"])
def test_a_panic_of_a_library_ends_the_job_that_it_is_about_alone(forced, where, ngram_draft):
    backend = forced(lambda t: {7: 0.0}, ngram_draft=ngram_draft)
    for name in ("good", "bad", "other"):
        backend.enqueue(job(name, 20, prompt=(1, 2, 3)))
    bad, rule = backend._jobs["bad"], Rule()
    bad.sampler.rules.append(rule)
    setattr(bad._detokenizer if where == "push" else rule, where, panic)
    events = []
    while backend.num_jobs:
        events += backend.iterate()
    ends = {e.identifier: e for e in events if isinstance(e, Finished | Failed)}
    assert isinstance(ends["bad"].error, engine.JobFailed)
    assert str(ends["bad"].error) == "Panic: unreachable code"
    assert [ends[name].new_tokens for name in ("good", "other")] == [20, 20]
    assert free_pages(backend) == backend._generator.max_pages


@pytest.mark.parametrize("error", [RuntimeError("odd"), Panic("odd")], ids=repr)
def test_a_text_that_can_not_be_told_at_a_cancel_is_that_jobs_failure(forced, error):
    backend = forced(lambda t: {7: 0.0})
    backend.enqueue(job("a", 20, prompt=(1,)))
    backend.iterate()

    def flush():
        raise error

    backend._jobs["a"]._detokenizer.flush = flush
    [end] = backend.cancel("a")
    assert isinstance(end.error, engine.JobFailed) and "odd" in str(end.error)
    assert backend.num_jobs == 0 and free_pages(backend) == backend._generator.max_pages


@pytest.mark.parametrize("tokens", [(900, 8), (8, 900)])
def test_a_pair_whose_prompt_fails_gives_all_its_pages_back(forced, tokens):
    backend = forced(lambda t: {5: 0.0}, refuse(RuntimeError("no such prompt")))
    first, second = ((1, token, 2) for token in tokens)
    guided = Sampling(cfg_scale=2.0)
    pair = job("pair", 3, prompt=first, negative_prompt=second, sampling=guided)
    events = run(backend, pair)["pair"]
    assert "no such prompt" in str(events[-1].error)
    assert free_pages(backend) == backend._generator.max_pages
