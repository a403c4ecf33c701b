"""Faults of a batch: the real generator tries again, repairs, recovers."""

import itertools
from dataclasses import replace

import pytest
import torch

from switchyard import engine
from switchyard.engine.messages import Chunk, Failed, Finished
from switchyard.engine.schedule.budget import Budget
from tests.engine.exl2.drive import GREEDY, Failing, Faults, free_pages, prompt
from tests.engine.forced import ending, exl2_backend, run
from tests.scripted import job

pytestmark = pytest.mark.over_exl3("hardship")


@pytest.fixture(scope="module")
def faults():
    return Faults()


@pytest.fixture(scope="module")
def faulty_backend(model_path, faults, is_overlapping, library):
    backend = exl2_backend(model_path, wrap=faults, is_overlapping=is_overlapping)
    backend.open()
    yield backend
    backend.close()


@pytest.mark.over_exl3("always")
@pytest.mark.parametrize("times", [1, 2])
def test_a_failed_step_is_tried_again_also_at_a_page_border(faulty_backend, faults, times):
    jobs = [
        job(f"job{i}", 40, prompt=prompt(i, 240 + 5 * i), sampling=GREEDY, ignore_eos=True)
        for i in range(3)
    ]
    expected = {j.identifier: ending(run(faulty_backend, j)[j.identifier]).text for j in jobs}
    before = faulty_backend.work.retries
    for fail_at in (3, 12, 17):  # the third step, and the steps before and at a border
        waiting, events = list(jobs), {j.identifier: [] for j in jobs}
        for step in itertools.count():
            if not waiting and not faulty_backend.num_jobs:
                break
            if waiting and faulty_backend.has_room(waiting[0]):
                faulty_backend.enqueue(waiting.pop(0))
            if step == fail_at:
                faults.left = times
            for event in faulty_backend.iterate():
                events[event.identifier].append(event)
        assert {i: ending(e).text for i, e in events.items()} == expected
    assert faulty_backend.work.retries == before + 3 * times


def test_a_step_that_is_tried_again_leaves_full_pages_to_later_prompts(faulty_backend, faults):
    faulty_backend.reset()
    faulty_backend.enqueue(job("a", 10, prompt=prompt(83, 300), sampling=GREEDY, ignore_eos=True))
    while faulty_backend._jobs["a"].num_sampled < 3:
        faulty_backend.iterate()
    faults.left = 1
    while faulty_backend.num_jobs:
        faulty_backend.iterate()
    assert faulty_backend.occupancy().cached_pages == 1


def test_a_reset_takes_pages_from_jobs_that_are_forgotten(forced):
    """Otherwise its own trial might wait for them, forever."""
    backend = forced(lambda t: {7: 0.0})
    generator = backend._generator
    backend.enqueue(job("a", 20, prompt=(1,)))
    backend.iterate()
    generator.active_jobs.clear()
    free = []

    def prove(job):
        free.append(free_pages(backend))
        type(generator).prove(generator, job)

    generator.prove = prove
    backend.reset()
    assert free == [generator.max_pages]


def test_no_token_is_lost_where_those_behind_a_launched_pass_do_not_come(backend, monkeypatch):
    from switchyard.engine.backends.sampling.draw import Drawing  # once the backend is installed

    def fail(self):
        if next(count) in (5, 9, 10):
            raise RuntimeError("no tokens")
        return take(self)

    one = job("a", 30, prompt=prompt(80, 250), sampling=GREEDY, ignore_eos=True)
    expected = ending(run(backend, one)["a"])
    take, count = Drawing.take, itertools.count()
    monkeypatch.setattr(Drawing, "take", fail)
    found = ending(run(backend, one)["a"])
    assert (found.text, found.last.new_tokens) == (expected.text, 30)
    assert next(count) > 30


def scored(events):
    """The text, and the tokens whose logprobs were told."""
    told = [one.token_id for event in events if isinstance(event, Chunk) for one in event.logprobs]
    return ending(events).text, told


def test_rows_that_are_drawn_one_by_one_are_of_jobs_that_go_on(opened):
    """The pass behind an end by a string has a row for the job that has ended with it."""
    backend = opened(is_overlapping=True, max_batch_size=4)
    common = {"sampling": GREEDY, "ignore_eos": True, "num_logprobs": 0}
    jobs = [job(f"job{i}", 30, prompt=prompt(i, 20), **common) for i in range(3)]
    expected = {j.identifier: scored(run(backend, j)[j.identifier]) for j in jobs}
    jobs[0] = replace(jobs[0], stop_strings=(expected["job0"][0][10:13],))
    generator, num_left, launched = backend._generator, [], []

    def launch(inputs):
        launched.extend(one.job.is_active for one in inputs)
        return type(generator)._launch(generator, inputs)

    def start(samplers, *rest):
        if len(samplers) == 3 and len(generator.active_jobs) == 2:
            num_left.append(len(samplers))
            raise RuntimeError("not all at once")
        return type(generator.draw).start(generator.draw, samplers, *rest)

    generator._launch, generator.draw.start = launch, start
    found = run(backend, *jobs)
    assert num_left == [3] and all(launched)
    for one in jobs[1:]:
        assert scored(found[one.identifier]) == expected[one.identifier]


def test_a_step_that_keeps_failing_is_given_up_and_a_reset_makes_good(faulty_backend, faults):
    one = job("a", 30, prompt=prompt(80, 250), sampling=GREEDY, ignore_eos=True)
    expected = ending(run(faulty_backend, one)["a"]).text
    faulty_backend.enqueue(one)
    faulty_backend.iterate()
    before = faulty_backend.work.retries
    faults.left = 3
    assert faulty_backend.iterate() == [] and faulty_backend.iterate() == []
    with pytest.raises(RuntimeError, match="out of memory"):
        faulty_backend.iterate()
    assert faulty_backend.work.retries == before + 2  # the last failure is no retry
    faulty_backend.reset()
    assert free_pages(faulty_backend) == faulty_backend._generator.max_pages
    again = run(faulty_backend, one)["a"]
    assert ending(again).text == expected
    assert again[-1].cached_tokens == 0  # nothing computed before the fault is trusted


@pytest.mark.over_exl3("always")
@pytest.mark.parametrize("way", ["reset", "rebuild", "reload"])
def test_after_each_way_to_recover_texts_are_as_before_and_all_pages_free(opened, way):
    backend = opened()
    one = job("a", 20, prompt=prompt(81, 300), sampling=GREEDY, ignore_eos=True)
    expected = ending(run(backend, one)["a"]).text
    backend.enqueue(one)
    backend.iterate()
    getattr(backend, way)()
    assert backend.cancel("a") == []  # nothing is left of it
    assert free_pages(backend) == backend._generator.max_pages
    again = run(backend, one)["a"]
    assert (ending(again).text, again[-1].cached_tokens) == (expected, 0)


def test_a_way_to_recover_that_does_not_help_says_so(faulty_backend, faults):
    for way in (faulty_backend.reset, faulty_backend.rebuild):
        faults.left = 1
        with pytest.raises(RuntimeError, match="out of memory"):
            way()
    faulty_backend.reset()


def test_a_step_that_fails_after_a_recovery_is_not_retried(faulty_backend, faults):
    one = job("a", 30, prompt=prompt(82, 250), sampling=GREEDY, ignore_eos=True)
    faulty_backend.reset()
    faulty_backend.enqueue(one)
    before = faulty_backend.work.retries
    faults.left = 1
    with pytest.raises(RuntimeError, match="out of memory"):
        faulty_backend.iterate()
    assert faulty_backend.work.retries == before
    faulty_backend.reset()
    assert run(faulty_backend, one)["a"][-1].new_tokens == 30
    faulty_backend.enqueue(one)
    faults.left = 1  # a step has succeeded since
    assert faulty_backend.iterate() == []
    faulty_backend.cancel("a")


@pytest.mark.parametrize("in_prefill", [True, False])
def test_a_lost_device_is_told_at_once(forced, in_prefill):
    failing = Failing()
    backend = forced(lambda t: {7: 0.0}, failing)
    backend.enqueue(job("a", prompt=prompt(1, 300)))
    lost = RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might")
    failing.errors.append((in_prefill, lost))
    with pytest.raises(engine.DeviceLost, match=r"device-side assert triggered$"):
        backend.iterate()


def test_a_draw_that_finds_no_memory_is_tried_again_for_all(forced, monkeypatch):
    def start(*arguments):
        if next(count) < 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        return draw(*arguments)

    backend = forced(lambda t: {7: 0.0})
    draw, count = backend._generator.draw.start, itertools.count()
    monkeypatch.setattr(backend._generator.draw, "start", start)
    found = run(backend, job("a", prompt=(1,)), job("b", prompt=(1,)))
    assert [ending(found[i]).last.new_tokens for i in "ab"] == [3, 3]
    assert backend.work.retries == 2


def test_prompts_are_no_proof_that_steps_succeed(forced):
    failing = Failing()
    backend = forced(lambda t: {7: 0.0}, failing, max_chunk_size=256)
    failing.errors = [(False, RuntimeError("out of memory"))] * 3
    for i, identifier in enumerate("ab"):
        backend.enqueue(job(identifier, prompt=prompt(i, 600)))
        while backend.iterate():  # parts of the prompt, and then a step that fails
            pass
        backend.cancel(identifier)
    backend.enqueue(job("c", prompt=prompt(2, 600)))
    with pytest.raises(RuntimeError, match="out of memory"):
        while backend.iterate():
            pass


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), engine.OutOfMemory),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), engine.OutOfMemory),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), engine.OutOfMemory),
        (RuntimeError("CUDA error: device-side assert triggered"), engine.DeviceLost),
        (RuntimeError("something else"), engine.JobFailed),
        (AssertionError("Job requires 9 pages"), engine.InvalidJob),
    ],
)
def test_what_fails_while_a_job_is_set_up_is_told_as_whose_fault_it_is(forced, error, kind):
    backend = forced(lambda t: {7: 0.0})

    def enqueue(job):
        raise error

    backend._generator.enqueue = enqueue
    with pytest.raises(engine.EngineError) as caught:
        backend.enqueue(job("a", prompt=(1,)))
    assert type(caught.value) is kind
    assert backend.num_jobs == 0 and not backend._jobs


def test_jobs_that_only_one_side_knows_are_found(forced):
    backend = forced(lambda t: {7: 0.0})
    for name in ("stray", "kept", "lost"):
        backend.enqueue(job(name, 20, prompt=(1,)))
    backend.iterate()
    backend._generator.cancel(backend._jobs["lost"])
    del backend._jobs["stray"]
    assert {event.identifier for event in backend.iterate()} == {"kept"}
    backend.enqueue(job("not begun", 20, prompt=(1,)))
    assert backend.num_jobs == 3
    assert backend.reconcile(["kept", "lost"]) == (2, ["lost"])
    assert backend.num_jobs == 1 and list(backend._jobs) == ["kept"]
    assert free_pages(backend) == backend._generator.max_pages - 1
    assert run_on(backend, "kept")[-1].new_tokens == 20


def test_a_failed_prefill_is_told_also_if_the_same_iteration_raises(forced):
    """The generator loses all results of an iteration that raises."""
    failing = Failing()
    backend = forced(lambda t: {7: 0.0}, failing)
    backend.enqueue(job("running", 50, prompt=(1,)))
    backend.iterate()
    failing.errors = [(kind, RuntimeError("out of memory")) for kind in (True, False)]
    backend.enqueue(job("newcomer", prompt=prompt(1, 300)))
    [event] = backend.iterate()
    assert isinstance(event, Failed) and event.identifier == "newcomer"
    assert free_pages(backend) == backend._generator.max_pages - 1
    assert ending(run_on(backend, "running")).last.new_tokens == 50


@pytest.mark.over_exl3("always")
def test_a_repair_leaves_pages_alone_that_another_job_has_filled(forced):
    """Two newcomers share the pages of their prompt; only the second gets to fill them."""
    failing = Failing()
    backend = forced(lambda t: {7: 0.0}, failing)
    backend._generator.budget = Budget(1024, 1024)  # for both prompts in one iteration
    backend.enqueue(job("running", 50, prompt=(1,)))
    backend.iterate()
    for identifier in ("a", "b"):
        backend.enqueue(job(identifier, prompt=prompt(1, 300)))
    # The first prefill, the decode step:
    failing.errors = [(kind, RuntimeError("out of memory")) for kind in (True, False)]
    [event] = backend.iterate()
    assert isinstance(event, Failed) and event.identifier == "a"
    [sequence] = backend._jobs["b"].sequences
    assert [page.kv_position for page in sequence.allocated_pages] == [256, 43]
    assert ending(run_on(backend, "b")).last.new_tokens == 3


def test_a_job_whose_last_result_is_lost_ends_all_the_same(forced):
    backend = forced(lambda t: {7: 0.0})
    generator = backend._generator
    backend.enqueue(job("a", 1, prompt=(1,)))
    [ending] = generator.pending_jobs
    deallocate = ending.deallocate_pages

    def failing():  # its pages are free, and its result is not returned
        deallocate()
        generator.active_jobs.remove(ending)
        raise RuntimeError("out of memory")

    ending.deallocate_pages = failing
    [event] = backend.iterate()
    assert isinstance(event.error, engine.BatchFailed)
    assert not backend._jobs and not generator.active_jobs


def run_on(backend, identifier):
    """Iterate until the job ends; its events."""
    events = []
    while not (events and isinstance(events[-1], Failed | Finished)):
        events += [event for event in backend.iterate() if event.identifier == identifier]
    return events
