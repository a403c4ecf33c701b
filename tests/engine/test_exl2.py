"""The real generator, on the CPU."""

import itertools
import json
import math
import random
import shutil
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from switchyard import engine
from switchyard.engine.messages import Chunk, Failed, Finished, Prefill, Started
from switchyard.engine.sampling import Sampling
from switchyard.engine.stats import Occupancy
from tests.engine.forced import ending, exl2_backend, run
from tests.scripted import Panic, job

GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module", params=[False, True], ids=["in turn", "overlapping"])
def is_overlapping(request):
    """Whether the generator works in the order of a GPU, where host and device do so at once."""
    return request.param


@pytest.fixture(scope="module")
def backend(model_path, is_overlapping):
    backend = exl2_backend(model_path, is_overlapping=is_overlapping)
    backend.open()
    yield backend
    backend.close()


@pytest.fixture
def forced(model_path, is_overlapping):
    """The generator over a ForcedModel."""
    opened = []

    def make(logits, before=None, **config):
        backend = exl2_backend(
            model_path, logits=logits, before=before, is_overlapping=is_overlapping, **config
        )
        backend.open()
        opened.append(backend)
        return backend

    yield make
    for backend in opened:
        backend.close()


def prompt(seed, length):
    rng = random.Random(seed)
    return tuple(rng.randrange(300, 4000) for _ in range(length))


def free_pages(backend):
    return len(backend._generator.unreferenced_pages)


def chain(*token_ids):
    """Each token is followed by the next; the last by itself."""
    following = dict(itertools.pairwise(token_ids))
    return lambda token_id: {following.get(token_id, token_ids[-1]): 0.0}


def pieces(backend, *texts):
    """The single tokens that `texts` are."""
    hf = backend._tokenizer.tokenizer_model.hf_tokenizer
    ids = [hf.encode(text, add_special_tokens=False).ids for text in texts]
    assert all(len(i) == 1 for i in ids), ids
    return [i[0] for i in ids]


# Loading


def test_a_context_of_less_than_a_chunk_limits_the_chunk(model_path):
    """ExLlamaV2 on CUDA limits the longest input to the context, and insists that a chunk fits."""
    backend = exl2_backend(model_path, max_seq_len=256, max_chunk_size=512)
    load = backend._load

    def load_as_on_cuda(config, exl2_config, progress):
        exl2_config.max_input_len = min(exl2_config.max_input_len, exl2_config.max_seq_len)
        return load(config, exl2_config, progress)

    backend._load = load_as_on_cuda
    assert backend.open().max_seq_len == 256
    assert ending(run(backend, job("a", 6, prompt=prompt(1, 250)))["a"]).last.prompt_tokens == 250
    backend.close()


@pytest.mark.parametrize("content", [b"", b"no weights", b"\x08" + bytes(7) + b"{}      more"])
def test_weights_that_are_damaged_are_named(model_path, tmp_path, content):
    path = shutil.copytree(model_path, tmp_path / "model")
    (path / "model.safetensors").write_bytes(content)
    with pytest.raises(engine.ModelError, match=r"model\.safetensors can't be read"):
        exl2_backend(str(path)).open()


def test_a_context_that_the_cache_cannot_hold_is_told(model_path, caplog):
    backend = exl2_backend(model_path, cache_tokens=1024)
    backend.open()
    backend.close()
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "context of 2048 tokens" in record.getMessage() and "1024" in record.getMessage()


def test_each_pass_is_given_the_loras_of_the_model(model_path):
    given, lora = [], SimpleNamespace(unload=lambda: None)

    def wrap(forward):
        def note(*args, loras=None, **kwargs):
            given.append(list(loras or ()))
            return forward(*args, **kwargs)

        return note

    backend = exl2_backend(model_path, wrap=wrap)
    load = backend._load

    def load_with_lora(*args):
        loaded = load(*args)
        loaded.loras.append(lora)
        return loaded

    backend._load = load_with_lora
    backend.open()
    backend.close()
    assert given and all(loras == [lora] for loras in given)


def test_a_closed_backend_has_no_weights(model_path):
    backend = exl2_backend(model_path)
    backend.open()
    model = backend._generator.model
    assert model._weights is not None
    backend.close()
    backend.close()
    assert model._weights is None


def without_eos(path):
    """Make the model in `path` one whose files name no end token."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        content = json.loads((path / name).read_text())
        content["eos_token_id"] = content["eos_token"] = None
        (path / name).write_text(json.dumps(content))


def test_a_model_without_an_end_token_goes_on_to_the_limit(model_path, tmp_path):
    path = shutil.copytree(model_path, tmp_path / "model")
    without_eos(path)
    backend = exl2_backend(str(path), logits=lambda t: {2: 0.0})
    backend.open()
    last = ending(run(backend, job("a", 4))["a"]).last
    assert (last.finish_reason, last.new_tokens) == ("length", 4)
    backend.close()


def test_an_end_token_that_the_tokenizer_alone_names_ends_a_text(model_path, tmp_path):
    path = shutil.copytree(model_path, tmp_path / "model")
    without_eos(path)
    config = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps({**config, "eos_token": "</s>"}))
    backend = exl2_backend(str(path), logits=lambda t: {2: 0.0})
    backend.open()
    last = ending(run(backend, job("a", 4))["a"]).last
    assert (last.finish_reason, last.new_tokens) == ("stop", 0)
    backend.close()


# Batches


def test_jobs_in_a_batch_give_the_texts_that_they_give_alone(backend):
    jobs = [
        job(f"job{i}", 20 + i, prompt=prompt(i, 1 + 37 * i), sampling=GREEDY) for i in range(12)
    ]
    together = run(backend, *jobs)
    for one in jobs:
        alone = run(backend, one)[one.identifier]
        assert ending(alone).text == ending(together[one.identifier]).text
        assert ending(alone).last.new_tokens == ending(together[one.identifier]).last.new_tokens
    assert free_pages(backend) == backend._generator.max_pages


def test_no_pass_waits_for_tokens_when_jobs_come_and_go(model_path, monkeypatch):
    backend = exl2_backend(model_path, is_overlapping=True, max_batch_size=4)
    backend.open()
    from switchyard.engine.backends.exl2.generator import (
        Generator,  # not before the backend is installed
    )

    launched = []
    launch_ahead = Generator._launch_ahead
    monkeypatch.setattr(
        Generator, "_launch_ahead", lambda *args: launched.append(launch_ahead(*args))
    )
    jobs = [
        job(f"job{i}", 3 + 2 * i, prompt=prompt(i, 10 + 40 * i), sampling=GREEDY) for i in range(12)
    ]
    together = run(backend, *jobs)
    assert launched and not any(launched)
    backend.close()
    plain = exl2_backend(model_path)
    plain.open()
    for one in jobs:
        alone = run(plain, one)[one.identifier]
        assert ending(alone).text == ending(together[one.identifier]).text
    plain.close()


def test_events_come_as_started_prefill_chunks_and_the_end(backend):
    events = run(backend, job("a", 3, prompt=prompt(50, 700), sampling=GREEDY, ignore_eos=True))[
        "a"
    ]
    kinds = [type(event) for event in events]
    assert kinds[0] is Started and kinds[-1] is Finished
    prefills = [event for event in events if isinstance(event, Prefill)]
    assert [(p.done_tokens, p.total_tokens) for p in prefills] == [(512, 699), (699, 699)]
    ids = [token_id for e in events if isinstance(e, Chunk) for token_id in e.token_ids]
    assert len(ids) == 3 and all(type(token_id) is int for token_id in ids)


def test_a_prompt_seen_before_is_not_computed_again(backend):
    same = prompt(60, 900)
    first = run(backend, job("a", 2, prompt=same, sampling=GREEDY))["a"][-1]
    second = run(backend, job("b", 2, prompt=same, sampling=GREEDY))["b"][-1]
    assert (first.prompt_tokens, first.cached_tokens) == (900, 0)
    assert (second.prompt_tokens, second.cached_tokens) == (900, 899)


def test_what_it_does_and_holds_is_told(model_path, is_overlapping):
    backend = exl2_backend(model_path, is_overlapping=is_overlapping)
    backend.open()
    before = replace(backend.work)
    one = job("a", 5, prompt=prompt(61, 600), sampling=GREEDY, ignore_eos=True)
    backend.enqueue(one)
    while backend.work.rows == before.rows:
        backend.iterate()
    assert backend.occupancy().referenced_pages == one.num_pages(256, 0)
    while backend.num_jobs:
        backend.iterate()
    rows = backend.work.rows - before.rows
    assert rows == backend.work.computed_rows - before.computed_rows
    assert rows == 5
    assert backend.occupancy() == Occupancy(referenced_pages=0, cached_pages=2)
    backend.rebuild()
    assert backend.occupancy() == Occupancy() and backend.work.rows > before.rows
    backend.close()


def test_one_newcomer_at_a_time_is_in_prefill(backend):
    backend.enqueue(job("long", 2, prompt=prompt(70, 1500)))
    assert not backend.has_room(job("next"))
    backend.iterate()
    assert not backend.has_room(job("next"))  # 512 of 1500 tokens are done
    backend.iterate()
    backend.iterate()
    assert backend.has_room(job("next"))
    assert not backend._generator.pending_jobs
    backend.cancel("long")


def test_newcomers_whose_prompts_are_one_chunk_together_start_together(backend):
    for i in range(5):
        assert backend.has_room(job(f"job{i}", prompt=prompt(i, 100)))
        backend.enqueue(job(f"job{i}", prompt=prompt(i, 100)))
    assert backend.has_room(job("next", prompt=prompt(9, 12)))
    assert not backend.has_room(job("next", prompt=prompt(9, 13)))
    events = backend.iterate()
    assert {e.identifier for e in events if isinstance(e, Started)} == {f"job{i}" for i in range(5)}
    assert not backend._generator.pending_jobs
    for i in range(5):
        backend.cancel(f"job{i}")


def test_there_is_room_only_for_as_many_pages_and_jobs_as_exist(model_path):
    backend = exl2_backend(model_path, cache_tokens=1024, max_batch_size=2)
    backend.open()
    big = job("big", 512 - 3, ignore_eos=True)
    pair = job("pair", negative_prompt=(1, 2))  # of two places, and two pages
    assert backend.has_room(big) and backend.has_room(pair)
    backend.enqueue(big)
    for _ in range(2):  # before it has its pages and after
        assert backend.has_room(job("a", 512 - 3)) and not backend.has_room(job("a", 513 - 3))
        assert not backend.has_room(pair)
        backend.iterate()
    backend.enqueue(job("a", ignore_eos=True))
    for _ in range(2):
        assert not backend.has_room(job("b"))
        backend.iterate()
    backend.cancel("big")
    assert backend.has_room(job("b"))
    backend.cancel("a")
    assert free_pages(backend) == 4
    backend.close()


@pytest.mark.parameter("seed")
def test_the_same_seed_gives_the_same_text_alone_and_in_a_batch(backend):
    def seeded(identifier, seed):
        return job(identifier, 20, sampling=Sampling(temperature=1.0, seed=seed))

    alone = ending(run(backend, seeded("a", 5))["a"]).text
    together = run(backend, seeded("a", 5), seeded("b", 6), seeded("c", 5))
    assert ending(together["a"]).text == ending(together["c"]).text == alone
    assert ending(together["b"]).text != alone
    assert ending(run(backend, seeded("d", -5))["d"]).text != alone


# A job's own faults


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


def test_a_job_that_the_generator_will_not_take_is_rejected(backend):
    with pytest.raises(engine.InvalidJob, match="AssertionError"):
        backend.enqueue(job("empty", prompt=()))
    assert not backend._jobs


@pytest.mark.parametrize("sampling", [Sampling(), GREEDY, Sampling(top_p=0.9, seed=1)], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_numbers_end_that_job_alone(forced, sampling, value):
    backend = forced(lambda t: {7: value} if t == 9 else {5: 0.0})
    bad = job("bad", 5, prompt=(1, 9), sampling=sampling)
    events = run(backend, bad, job("good", 5, prompt=(1, 2)))
    assert isinstance(events["bad"][-1], Failed)
    assert str(events["bad"][-1].error) == "the model's logits are not numbers"
    assert events["good"][-1].new_tokens == 5


def test_a_job_with_no_token_left_to_choose_from_ends_alone(forced):
    backend = forced(lambda t: {5: 0.0})
    bad = job("bad", 5, sampling=Sampling(allowed_token_ids=(5,), banned_token_ids=(5,)))
    events = run(backend, bad, job("good", 5))
    assert isinstance(events["bad"][-1].error, engine.InvalidJob)  # its own fault: 400
    assert str(events["bad"][-1].error) == "no token is left to choose from: all are banned"
    assert events["good"][-1].new_tokens == 5


def test_a_job_that_fails_behind_its_result_tells_its_failure_alone(backend):
    def fail(*args, **more):
        raise ArithmeticError("no text")

    backend.enqueue(job("x", 5, sampling=GREEDY, ignore_eos=True))
    backend.iterate()
    backend._jobs["x"]._detokenizer.push = fail
    [event] = backend.iterate()
    assert isinstance(event, Failed) and "no text" in str(event.error)
    assert free_pages(backend) == backend._generator.max_pages


# Faults of the batch


class Faults:
    """Wraps `forward_chunk`: raises in decode steps while `left` is positive."""

    def __init__(self):
        self.left = 0

    def __call__(self, forward):
        def wrapped(*args, preprocess_only=False, **kwargs):
            if self.left and not preprocess_only:
                self.left -= 1
                raise RuntimeError("out of memory")
            return forward(*args, preprocess_only=preprocess_only, **kwargs)

        return wrapped


@pytest.fixture(scope="module")
def faults():
    return Faults()


@pytest.fixture(scope="module")
def faulty_backend(model_path, faults, is_overlapping):
    backend = exl2_backend(model_path, wrap=faults, is_overlapping=is_overlapping)
    backend.open()
    yield backend
    backend.close()


@pytest.mark.parametrize("times", [1, 2])
def test_a_failed_step_is_repaired_and_tried_again_also_at_a_page_border(
    faulty_backend, faults, times
):
    jobs = [
        job(f"job{i}", 40, prompt=prompt(i, 240 + 5 * i), sampling=GREEDY, ignore_eos=True)
        for i in range(3)
    ]
    expected = {j.identifier: ending(run(faulty_backend, j)[j.identifier]).text for j in jobs}
    before = faulty_backend.work.retries
    for fail_at in (3, 12, 17):  # the third step, and the steps before and at a border
        waiting, events = list(jobs), {j.identifier: [] for j in jobs}
        for step in range(200):
            if waiting and faulty_backend.has_room(waiting[0]):
                faulty_backend.enqueue(waiting.pop(0))
            if step == fail_at:
                faults.left = times
            for event in faulty_backend.iterate():
                events[event.identifier].append(event)
        assert {i: ending(e).text for i, e in events.items()} == expected
    assert faulty_backend.work.retries == before + 3 * times


def test_no_token_is_lost_where_those_behind_a_launched_pass_do_not_come(backend, monkeypatch):
    from switchyard.engine.backends.sampling.draw import (
        Drawing,  # not before the backend is installed
    )

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


def test_rows_that_are_drawn_one_by_one_are_of_jobs_that_go_on(model_path):
    """The pass behind an end by a string has a row for the job that has ended with it."""
    backend = exl2_backend(model_path, is_overlapping=True, max_batch_size=4)
    backend.open()
    jobs = [
        job(f"job{i}", 30, prompt=prompt(i, 20), sampling=GREEDY, ignore_eos=True) for i in range(3)
    ]
    expected = {j.identifier: ending(run(backend, j)[j.identifier]).text for j in jobs}
    jobs[0] = replace(jobs[0], stop_strings=(expected["job0"][10:13],))
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
        assert ending(found[one.identifier]).text == expected[one.identifier]
    backend.close()


def test_a_step_that_keeps_failing_is_given_up_and_a_reset_makes_good(faulty_backend, faults):
    one = job("a", 30, prompt=prompt(80, 250), sampling=GREEDY, ignore_eos=True)
    expected = ending(run(faulty_backend, one)["a"]).text
    faulty_backend.enqueue(one)
    faulty_backend.iterate()
    faults.left = 3
    assert faulty_backend.iterate() == [] and faulty_backend.iterate() == []
    with pytest.raises(RuntimeError, match="out of memory"):
        faulty_backend.iterate()
    faulty_backend.reset()
    assert free_pages(faulty_backend) == faulty_backend._generator.max_pages
    again = run(faulty_backend, one)["a"]
    assert ending(again).text == expected
    assert again[-1].cached_tokens == 0  # nothing computed before the fault is trusted


@pytest.mark.parametrize("way", ["reset", "rebuild", "reload"])
def test_after_each_way_to_recover_texts_are_as_before_and_all_pages_free(model_path, way):
    faults = Faults()
    backend = exl2_backend(model_path, wrap=faults)
    backend.open()
    one = job("a", 20, prompt=prompt(81, 300), sampling=GREEDY, ignore_eos=True)
    expected = ending(run(backend, one)["a"]).text
    backend.enqueue(one)
    backend.iterate()
    getattr(backend, way)()
    assert free_pages(backend) == backend._generator.max_pages
    again = run(backend, one)["a"]
    assert (ending(again).text, again[-1].cached_tokens) == (expected, 0)
    backend.close()


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
    faults.left = 1
    with pytest.raises(RuntimeError, match="out of memory"):
        faulty_backend.iterate()
    faulty_backend.reset()
    assert run(faulty_backend, one)["a"][-1].new_tokens == 30
    faulty_backend.enqueue(one)
    faults.left = 1  # a step has succeeded since
    assert faulty_backend.iterate() == []
    faulty_backend.cancel("a")


@pytest.mark.parametrize("in_prefill", [True, False])
def test_a_lost_device_is_told_at_once(forced, in_prefill):
    def before(input_ids, is_prefill):
        if is_prefill == in_prefill and failing:
            raise RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might")

    failing = []
    backend = forced(lambda t: {7: 0.0}, before)
    backend.enqueue(job("a", prompt=prompt(1, 300)))
    failing.append(True)
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
    def before(input_ids, is_prefill):
        if failing and not is_prefill:
            raise RuntimeError("out of memory")

    failing = []
    backend = forced(lambda t: {7: 0.0}, before, max_chunk_size=256)
    failing.append(True)
    for i, identifier in enumerate("ab"):
        backend.enqueue(job(identifier, prompt=prompt(i, 600)))
        while backend.iterate():  # parts of the prompt, and then a step that fails
            pass
        backend.cancel(identifier)
    backend.enqueue(job("c", prompt=prompt(2, 600)))
    with pytest.raises(RuntimeError, match="out of memory"):
        while backend.iterate():
            pass


def test_a_prompt_that_finds_no_memory_is_told_as_such(forced):
    def before(input_ids, is_prefill):
        if is_prefill and failing:
            raise failing.pop()

    failing = []
    backend = forced(lambda t: {7: 0.0}, before)
    backend.enqueue(job("running", 50, prompt=(1,)))
    backend.iterate()
    failing.append(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"))
    backend.enqueue(job("newcomer", prompt=prompt(1, 300)))
    failed = [event for event in backend.iterate() if isinstance(event, Failed)]
    assert [(f.identifier, type(f.error)) for f in failed] == [("newcomer", engine.OutOfMemory)]
    assert ending(run_on(backend, "running")).last.new_tokens == 50


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


class PanickingRule:
    is_ready = True
    is_done = False

    def __init__(self, method):
        self._method = method

    def limit(self):
        if self._method == "limit":
            raise Panic("unreachable code")

    def accept(self, token_id):
        if self._method == "accept":
            raise Panic("unreachable code")


def panic(*arguments, **settings):
    raise Panic("unreachable code")


@pytest.mark.parametrize("ngram_draft", [False, True])
@pytest.mark.parametrize("where", ["limit", "accept", "push"])
def test_a_panic_of_a_library_ends_the_job_that_it_is_about_alone(forced, where, ngram_draft):
    backend = forced(lambda t: {7: 0.0}, ngram_draft=ngram_draft)
    for name in ("good", "bad", "other"):
        backend.enqueue(job(name, 20, prompt=(1, 2, 3)))
    bad = backend._jobs["bad"]
    if where == "push":
        bad._detokenizer.push = panic
    else:
        bad.sampler.rules.append(PanickingRule(where))
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


def test_jobs_that_only_one_side_knows_are_found(forced):
    backend = forced(lambda t: {7: 0.0})
    for name in ("stray", "kept", "lost"):
        backend.enqueue(job(name, 20, prompt=(1,)))
    backend.iterate()
    backend._generator.cancel(backend._jobs["lost"])
    assert backend.num_jobs == 2
    assert backend.reconcile(["kept", "lost"]) == (1, ["lost"])
    assert backend.num_jobs == 1 and list(backend._jobs) == ["kept"]
    assert free_pages(backend) == backend._generator.max_pages - 1
    assert run_on(backend, "kept")[-1].new_tokens == 20


def test_a_failed_prefill_is_told_also_if_the_same_iteration_raises(forced):
    """The generator loses all results of an iteration that raises."""
    failing = []

    def before(input_ids, is_prefill):
        if failing and failing[0] == is_prefill:
            failing.pop(0)
            raise RuntimeError("out of memory")

    backend = forced(lambda t: {7: 0.0}, before)
    backend.enqueue(job("running", 50, prompt=(1,)))
    backend.iterate()
    failing += [True, False]
    backend.enqueue(job("newcomer", prompt=prompt(1, 300)))
    [event] = backend.iterate()
    assert isinstance(event, Failed) and event.identifier == "newcomer"
    assert free_pages(backend) == backend._generator.max_pages - 1
    assert ending(run_on(backend, "running")).last.new_tokens == 50


def test_a_repair_leaves_pages_alone_that_another_job_has_filled(forced):
    """Two newcomers share the pages of their prompt; only the second gets to fill them."""
    failing = []

    def before(input_ids, is_prefill):
        if failing and failing[0] == is_prefill:
            failing.pop(0)
            raise RuntimeError("out of memory")

    backend = forced(lambda t: {7: 0.0}, before, max_chunk_size=512)
    backend.enqueue(job("running", 50, prompt=(1,)))
    backend.iterate()
    for identifier in ("a", "b"):
        backend.enqueue(job(identifier, prompt=prompt(1, 300)))
    failing += [True, False]  # the first prefill, the decode step
    [event] = backend.iterate()
    assert isinstance(event, Failed) and event.identifier == "a"
    [sequence] = backend._jobs["b"].sequences
    assert [page.kv_position for page in sequence.allocated_pages] == [256, 43]
    assert ending(run_on(backend, "b")).last.new_tokens == 3


def test_a_job_whose_last_result_is_lost_ends_all_the_same(forced):
    backend = forced(lambda t: {7: 0.0})
    generator, defrag = backend._generator, backend._generator.defrag_cache

    def failing_defrag():
        generator.defrag_cache = defrag
        raise RuntimeError("out of memory")

    generator.defrag_cache = failing_defrag  # runs when the last job has ended
    backend.enqueue(job("a", 1, prompt=(1,)))
    [event] = backend.iterate()
    assert isinstance(event.error, engine.BatchFailed)
    assert not backend._jobs and not generator.active_jobs


def run_on(backend, identifier):
    """Iterate until the job ends; its events."""
    events = []
    while not (events and isinstance(events[-1], Failed | Finished)):
        events += [event for event in backend.iterate() if event.identifier == identifier]
    return events


# Text


def test_text_held_for_a_stop_string_is_delivered_when_the_limit_comes(backend, forced):
    a, b, c = pieces(backend, " return", " import", " class")
    held = forced(chain(1, a, b, c))
    end = ending(run(held, job("x", 2, prompt=(1,), stop_strings=(" importance",)))["x"])
    assert (end.text, end.last.finish_reason) == (" return import", "length")


def test_text_held_for_a_stop_string_is_delivered_when_a_stop_token_comes(backend, forced):
    a, b, c = pieces(backend, " return", " import", " class")
    held = forced(chain(1, a, b, c))
    stopped = job("x", 9, prompt=(1,), stop_strings=(" importance",), stop_token_ids=(c,))
    events = run(held, stopped)["x"]
    end = ending(events)
    assert (end.text, end.last.finish_reason) == (" return import", "stop")
    assert end.last.new_tokens == 2  # without the stop token
    assert [i for e in events if isinstance(e, Chunk) for i in e.token_ids] == [a, b]
    end = ending(run(held, job("x", 9, prompt=(1,), stop_token_ids=(b,)))["x"])
    assert (end.text, end.last.new_tokens) == (" return", 1)


@pytest.mark.parameter("stop")
def test_a_stop_string_ends_the_text_before_it(backend, forced):
    a, b, c = pieces(backend, " return", " import", " class")
    held = forced(chain(1, a, b, c))
    for stops, text in [
        (("import",), " return "),
        (("port cl",), " return im"),
        (("class", "urn im"), " ret"),
    ]:
        end = ending(run(held, job("x", 9, prompt=(1,), stop_strings=stops))["x"])
        assert (end.text, end.last.finish_reason) == (text, "stop")


@pytest.mark.parametrize("tail", ["by limit", "by stop token", "by neither"])
def test_of_overlapping_stop_strings_the_one_that_begins_first_ends_the_text(backend, forced, tail):
    a, b, c = pieces(backend, " return", " import", " class")
    more = {
        "by limit": {"max_new_tokens": 3},
        "by stop token": {"stop_token_ids": (c,), "max_new_tokens": 9},
        "by neither": {"max_new_tokens": 9},
    }[tail]
    held = forced(chain(1, a, b, c))
    for letters in (" return", "return", "turn", "urn", "n"):
        for pair in itertools.permutations([f"{letters} im", "n import"]):
            end = ending(run(held, job("x", prompt=(1,), stop_strings=pair, **more))["x"])
            assert (end.text, end.last.finish_reason) == (" return".removesuffix(letters), "stop")
        for pair in itertools.permutations([f"{letters} import class", " im"]):
            end = ending(run(held, job("x", prompt=(1,), stop_strings=pair, **more))["x"])
            text = " return" if tail == "by stop token" else " return".removesuffix(letters)
            assert (end.text, end.last.finish_reason) == (text, "stop")


def test_a_stop_string_that_the_last_token_completes_ends_the_text_too(backend, forced):
    a, b = pieces(backend, " return", " import")
    held = forced(chain(1, a, b))
    end = ending(run(held, job("x", 2, prompt=(1,), stop_strings=("import",)))["x"])
    assert (end.text, end.last.finish_reason) == (" return ", "stop")


def test_jobs_that_start_together_are_told_in_their_order(backend):
    jobs = [job(i, 30, prompt=(1, 2, 3), sampling=GREEDY, ignore_eos=True) for i in "abcd"]
    for one in jobs:
        backend.enqueue(one)
    told = [e.identifier for _ in range(3) for e in backend.iterate() if isinstance(e, Chunk)]
    assert told[:4] == list("abcd")
    for identifier in "abcd":
        backend.cancel(identifier)


def test_a_job_that_has_grown_beyond_its_first_page_is_cancelled(backend):
    """What it holds was made inside the generator, and is changed outside."""
    backend.enqueue(job("a", 600, prompt=prompt(1, 200), sampling=GREEDY, ignore_eos=True))
    for _ in range(400):
        backend.iterate()
    [*_, last] = backend.cancel("a")
    assert last.finish_reason == "cancelled" and last.new_tokens >= 399
    assert free_pages(backend) == backend._generator.max_pages


def test_a_job_that_it_does_not_have_is_cancelled_without_an_error(backend):
    assert backend.cancel("unknown") == []


def test_cancelling_tells_the_text_that_was_held_and_the_counts(backend, forced):
    a, b, c = pieces(backend, " return", " import", " class")
    held = forced(chain(1, a, b, c))
    same = (*prompt(90, 600), 1)
    run(held, job("before", 1, prompt=same))
    held.enqueue(job("x", 9, prompt=same, stop_strings=(" importance",)))
    events = [held.iterate() for _ in range(2)][-1]
    assert [event.text for event in events if isinstance(event, Chunk)] == []
    assert held.cancel("x") == [
        Chunk("x", " import", (b,)),
        Finished("x", "cancelled", prompt_tokens=601, new_tokens=2, cached_tokens=600),
    ]
    assert free_pages(held) == held._generator.max_pages


def test_a_character_that_the_last_token_completes_is_whole(backend, forced):
    hf = backend._tokenizer.tokenizer_model.hf_tokenizer
    emoji = hf.encode("😀", add_special_tokens=False).ids
    [after] = pieces(backend, " class")
    assert len(emoji) > 1
    by_limit = forced(chain(1, *emoji, after))
    end = ending(run(by_limit, job("x", len(emoji), prompt=(1,)))["x"])
    assert end.text == "😀"
    by_token = forced(chain(1, *emoji, after))
    end = ending(run(by_token, job("x", 9, prompt=(1,), stop_token_ids=(after,)))["x"])
    assert end.text == "😀"


def test_text_after_a_byte_that_is_no_character_is_not_held_back(backend, forced):
    a, b, c, d = pieces(backend, " return", " import", " class", " for")
    hf = backend._tokenizer.tokenizer_model.hf_tokenizer
    stray = hf.encode("é", add_special_tokens=False).ids[0]
    assert backend._tokenizer.get_id_to_piece_list()[stray] == "\ufffd"
    held = forced(chain(1, a, stray, b, d, c))
    chunks = [
        event
        for event in run(held, job("x", 9, prompt=(1,), stop_strings=("class",)))["x"]
        if isinstance(event, Chunk)
    ]
    assert [chunk.text for chunk in chunks] == [" return", "\ufffd import", " for", " "]
    assert [i for chunk in chunks for i in chunk.token_ids] == [a, stray, b, d, c]


def test_a_whole_character_behind_stray_bytes_stays_whole(backend, forced):
    hf = backend._tokenizer.tokenizer_model.hf_tokenizer
    emoji = hf.encode("😀", add_special_tokens=False).ids
    stray = emoji[-1]
    [after] = pieces(backend, " class")
    steps = []
    held = forced(lambda t: {steps.pop(0) if steps else after: 0.0})
    for before in (0, 1, 2, 3, 4, 5, 9):
        steps += [*[stray] * before, *emoji]
        end = ending(run(held, job("x", before + len(emoji) + 2, prompt=(1,)))["x"])
        assert end.text == "\ufffd" * before + "😀 class class"


def test_a_space_before_what_is_decoded_together_is_kept(sentencepiece_path):
    """Decoders of this kind take the space away from the beginning of a text."""
    steps = []
    backend = exl2_backend(sentencepiece_path, logits=lambda t: {steps.pop(0) if steps else 5: 0.0})
    backend.open()
    hf = backend._tokenizer.tokenizer_model.hf_tokenizer
    the, *emoji = hf.encode("the 😀 class", add_special_tokens=False).ids
    for stop_strings in ((), (" END", "!")):  # held back for the rest of a stop string, or not
        steps[:] = [the, *emoji]
        one = job("x", 1 + len(emoji), prompt=(1,), stop_strings=stop_strings)
        assert ending(run(backend, one)["x"]).text == " the 😀 class"
    backend.close()


# Stops


@pytest.mark.parameter("min_tokens")
def test_min_tokens_forbids_stops_by_token_and_by_string(backend, forced):
    a, b, c, eos = *pieces(backend, " return", " import", " class"), 2
    model = {1: {eos: 5.0, a: 4.0}, a: {eos: 5.0, b: 4.0}, b: {eos: 5.0, c: 4.0}, c: {c: 5.0}}
    backend = forced(lambda t: model.get(t, {c: 0.0}))
    for sampling in (GREEDY, Sampling(top_p=0.5)):  # the nucleus is EOS alone
        early = job("x", 9, prompt=(1,), min_new_tokens=2, sampling=sampling)
        assert ending(run(backend, early)["x"]).text == " return import"
    by_string = job(
        "x", 9, prompt=(1,), min_new_tokens=3, stop_strings=("port", "class"), sampling=GREEDY
    )
    end = ending(run(backend, by_string)["x"])
    assert (end.text, end.last.finish_reason) == (" return import ", "stop")


def test_a_stop_string_counts_if_it_ends_after_min_tokens_wherever_it_began(backend, forced):
    a, b, c = pieces(backend, " return", " import", " class")
    backend = forced(chain(1, a, b, c, a))
    hf = backend._tokenizer.tokenizer_model.hf_tokenizer
    stray = hf.encode("é", add_special_tokens=False).ids[0]

    def text(model, min_new_tokens, *stop_strings):
        more = {"min_new_tokens": min_new_tokens, "stop_strings": stop_strings}
        return ending(run(model, job("x", 4, prompt=(1,), sampling=GREEDY, **more))["x"]).text

    assert text(backend, 3, "return imp", "port cl") == " return im"
    assert text(backend, 4, "return imp", "port cl") == " return import class return"
    steps = []  # the generator holds back text behind bytes that are no character
    after_stray = forced(lambda t: {steps.pop(0) if steps else c: 0.0})
    steps[:] = [stray, a, b, c]
    assert text(after_stray, 3, "return") == "\ufffd return import class"


@pytest.mark.parametrize("eos", [2, 4], ids=["</s>", "<|im_end|>"])  # the model has two
@pytest.mark.parameter("ignore_eos")
def test_eos_stops_unless_it_is_ignored(backend, forced, eos):
    [a] = pieces(backend, " return")
    model = {1: {a: 0.0}, a: {eos: 0.0}, eos: {a: 0.0}}
    backend = forced(lambda t: model.get(t, {a: 0.0}))
    end = ending(run(backend, job("x", 6, prompt=(1,), sampling=GREEDY))["x"])
    assert (end.text, end.last.finish_reason, end.last.new_tokens) == (" return", "stop", 1)
    end = ending(run(backend, job("x", 6, prompt=(1,), sampling=GREEDY, ignore_eos=True))["x"])
    assert (end.text, end.last.finish_reason) == (" return return return", "length")


@pytest.mark.parameter("stop_token_ids")
def test_a_requests_own_stop_token_ends_the_text_before_it(backend, forced):
    a, b = pieces(backend, " return", " import")
    backend = forced(lambda t: {1: {a: 0.0}, a: {b: 0.0}}.get(t, {a: 0.0}))
    for stops, text, reason in (((), " return import return", "length"), ((b,), " return", "stop")):
        stopping = job("x", 3, prompt=(1,), sampling=GREEDY, stop_token_ids=stops)
        end = ending(run(backend, stopping)["x"])
        assert (end.text, end.last.finish_reason) == (text, reason)


# Sampling


def draws(backend, sampling, times=200, max_batch=20):
    jobs = [
        job(f"job{i}", 1, prompt=(1,), sampling=Sampling(**{**sampling, "seed": i}))
        for i in range(times)
    ]
    events = run(backend, *jobs)
    return Counter(e.token_ids[0] for es in events.values() for e in es if isinstance(e, Chunk))


PROBABILITIES = {300: 0.45, 301: 0.40, 302: 0.10, 303: 0.05}


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({}, {300, 301, 302, 303}),
        ({"top_p": 0.8}, {300, 301}),
        ({"top_p": 0.86}, {300, 301, 302}),
        ({"top_p": 0.0}, {300}),
        ({"top_k": 3}, {300, 301, 302}),
        ({"top_k": 1}, {300}),
        ({"min_p": 0.2}, {300, 301, 302}),
        ({"min_p": 0.5}, {300, 301}),
        ({"temperature": 0.0}, {300}),
    ],
    ids=str,
)
@pytest.mark.parameter("temperature")
@pytest.mark.parameter("top_p")
@pytest.mark.parameter("top_k")
@pytest.mark.parameter("min_p")
def test_the_filters_keep_what_their_names_say(forced, sampling, kept):
    backend = forced(lambda t: {i: math.log(p) for i, p in PROBABILITIES.items()})
    assert set(draws(backend, sampling)) == kept


def test_draws_follow_the_probabilities(forced):
    backend = forced(lambda t: {i: math.log(p) for i, p in PROBABILITIES.items()})
    counts = draws(backend, {"top_p": 0.8}, times=400)
    assert counts[300] / 400 == pytest.approx(0.45 / 0.85, abs=0.1)


@pytest.mark.parametrize(
    ("sampling", "first", "then"),
    [
        # 300 is in the prompt: only the repetition penalty minds, before any token is drawn.
        ({"repetition_penalty": 1.5}, 301, 300),
        ({"frequency_penalty": 0.7}, 300, 301),
        ({"presence_penalty": 0.7}, 300, 301),
        ({"frequency_penalty": 0.4}, 300, 300),
        ({}, 300, 300),
    ],
    ids=str,
)
@pytest.mark.parameter("repetition_penalty")
@pytest.mark.parameter("frequency_penalty")
@pytest.mark.parameter("presence_penalty")
def test_penalties_count_what_their_definitions_say(forced, sampling, first, then):
    backend = forced(lambda t: {300: 4.0, 301: 3.5})
    greedy = Sampling(temperature=0.0, **sampling)
    events = run(backend, job("x", 2, prompt=(1, 300), sampling=greedy))["x"]
    ids = [token_id for e in events if isinstance(e, Chunk) for token_id in e.token_ids]
    assert ids == [first, then]


@pytest.mark.parametrize("chunk", [17, 64, 100])
def test_prompts_in_chunks_that_end_inside_pages_give_the_same_text(model_path, chunk):
    """Beside a running stream; some begin alike, and share pages that are not full yet."""
    backend = exl2_backend(model_path, max_chunk_size=chunk, max_batch_size=8)
    backend.open()
    generator = backend._generator
    generator.validate_cache = generator._ExLlamaV2DynamicGenerator___validate_cache
    shared = prompt(99, 600)
    prompts = [prompt(i, n) for i, n in enumerate((2, 17, 255, 256, 257, 400, 700))]
    prompts += [shared[:n] + prompt(n, 50) for n in (100, 300, 512, 600)]
    jobs = [job(f"job{i}", 20, prompt=p, sampling=GREEDY) for i, p in enumerate(prompts)]
    stream = job("stream", 700, prompt=prompt(7, 5), sampling=GREEDY, ignore_eos=True)
    together = run(backend, stream, *jobs)
    for one in jobs:
        events = together[one.identifier]
        done = [e.done_tokens for e in events if isinstance(e, Prefill)]
        assert done == sorted(done) and (not done or done[-1] == len(one.prompt) - 1)
        backend.reset()
        assert ending(events).text == ending(run(backend, one)[one.identifier]).text
    long = [e for e in together["job6"] if isinstance(e, Prefill)]
    assert all(e.total_tokens == 699 for e in long)
    assert len(long) == -(-699 // chunk)
    assert free_pages(backend) == generator.max_pages
    backend.close()


@pytest.mark.parametrize(
    "more, reason, stop_reason",
    [
        ({"stop_strings": ("class",)}, "stop", "class"),
        ({"stop_token_ids": (9,)}, "stop", 9),
        ({}, "stop", None),  # the model's own end
        ({"max_new_tokens": 2}, "length", None),
    ],
)
def test_the_end_says_what_ended_it(forced, more, reason, stop_reason):
    [word] = pieces(forced(lambda t: {7: 0.0}), "class")
    backend = forced(chain(8, word, 9, 2))
    one = job("a", **{"max_new_tokens": 9, "prompt": (8,), **more})
    last = run(backend, one)["a"][-1]
    assert (last.finish_reason, last.stop_reason) == (reason, stop_reason)
