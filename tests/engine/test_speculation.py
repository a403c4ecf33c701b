"""Guessed tokens: the same texts, from the real generator on the CPU."""

import functools
import json
import random
import shutil
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from switchyard import engine
from switchyard.engine.backends.exl2.guessing.guesses import Guesses
from switchyard.engine.grammar import constraints
from switchyard.engine.messages import Failed, Finished
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tokenizer import Tokenizer
from switchyard.engine.sampling import Sampling
from switchyard.engine.schedule import admission
from tests.conftest import DEMO
from tests.engine.exl2.drive import free_pages
from tests.engine.failing import names
from tests.engine.forced import ending, exl2_backend, run
from tests.engine.test_logprobs import told
from tests.hostile import edit
from tests.scripted import job

GREEDY = Sampling(temperature=0.0)
WAYS = ["ngram", "ngram ahead", "draft", "draft ahead"]


@pytest.fixture(scope="module")
def noisy(tmp_path_factory):
    """The embedded model, some way off: it guesses right now and then."""
    path = shutil.copytree(DEMO, tmp_path_factory.mktemp("models") / "noisy")
    torch.manual_seed(0)
    weights = load_file(path / "model.safetensors")
    for weight in weights.values():
        if weight.dim() == 2:
            weight += 0.15 * weight.float().std() * torch.randn_like(weight)
    save_file(weights, path / "model.safetensors")
    return str(path)


@pytest.fixture(autouse=True)
def _all_guesses(monkeypatch):
    """Guess whether it pays or not: what pays depends on time."""
    monkeypatch.setattr(Guesses, "number", lambda self, rates: self.most if any(rates) else 0)


@pytest.fixture(scope="module")
def plain():
    backend = exl2_backend(DEMO, max_batch_size=8)
    backend.open()
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def expected(plain):
    """What jobs give without guesses, computed once for all ways to guess."""
    return functools.cache(lambda *jobs: texts(plain, jobs))


def test_a_job_has_room_for_its_guesses_too(opened):
    backend = opened(DEMO, ngram_draft=True, num_draft_tokens=3, cache_tokens=512)
    prompt = (1,) * (512 - 1 - 3)
    assert backend.has_room(job("a", 1, prompt=prompt))
    assert not backend.has_room(job("a", 1, prompt=(*prompt, 1)))


@pytest.fixture(scope="module", params=WAYS)
def guessing(request, noisy):
    """`ahead`: as on a GPU, where the next pass is launched before the host has the tokens."""
    how = {"ngram_draft": True} if "ngram" in request.param else {"draft_model": noisy}
    backend = exl2_backend(DEMO, max_batch_size=8, **how)
    backend.open()
    backend._generator.is_overlapping = "ahead" in request.param
    yield backend
    backend.close()


@functools.cache
def conversation(text):
    tokenizer = Tokenizer(ModelDir.read(DEMO))
    return tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n", 2048)


QUESTIONS = [
    "Count from 3 to 40.",
    "Tell me a story.",
    "Repeat this code: 7F3A-9921-7F3A-9921",
    "Make a list of five fruits.",
    "Hello! What can you do?",
    "My name is Ada. What is my name?",
]


def text_jobs(sampling=GREEDY, **more):
    return [
        job(f"job{i}", 40, prompt=conversation(text), sampling=sampling, **more)
        for i, text in enumerate(QUESTIONS)
    ]


def texts(backend, jobs):
    ends = {name: ending(events) for name, events in run(backend, *jobs).items()}
    assert all(isinstance(end.last, Finished) for end in ends.values()), ends
    return {
        name: (end.text, end.last.finish_reason, end.last.new_tokens, end.last.stop_reason)
        for name, end in ends.items()
    }


@pytest.mark.parametrize(
    "sampling",
    [GREEDY, Sampling(seed=5), Sampling(seed=6, repetition_penalty=1.2, top_p=0.9, mirostat=True)],
    ids=["greedy", "sampled", "with state"],
)
def test_texts_are_the_same_with_guesses(expected, guessing, sampling):
    jobs = text_jobs(sampling)
    assert texts(guessing, jobs) == expected(*jobs)
    assert free_pages(guessing) == guessing._generator.max_pages


def test_several_tokens_come_in_one_step(guessing):
    one, *_ = text_jobs()
    before, steps = guessing.work.drafts, []
    guessing.enqueue(one)
    while guessing.num_jobs:
        steps.append(guessing.iterate())
    chunks = [[event for event in step if isinstance(event, engine.Chunk)] for step in steps]
    assert max(len(step) for step in chunks) > 1
    last = steps[-1][-1]
    assert last.new_tokens == sum(len(c.token_ids) for step in chunks for c in step)
    assert 0 < last.accepted_tokens <= last.draft_tokens
    num_guesses = guessing.work.drafts - before
    assert num_guesses <= len(steps)
    assert last.draft_tokens <= num_guesses * guessing._generator.num_draft_tokens
    # Each step but the prompt's draws one token beside those that had been guessed.
    assert last.accepted_tokens <= last.new_tokens <= last.accepted_tokens + len(steps)
    told = [events[-1] for events in run(guessing, *text_jobs()).values()]
    assert sum(each.accepted_tokens for each in told) < sum(each.draft_tokens for each in told)


def test_steps_are_timed(guessing, monkeypatch):
    took = []
    monkeypatch.setattr(Guesses, "note", lambda self, num_jobs, number, t: took.append(t))
    begin = time.perf_counter()
    run(guessing, *text_jobs())
    assert 0 < min(took) <= sum(took) <= time.perf_counter() - begin


def test_guesses_that_were_wrong_are_told_at_a_cancel(opened):
    backend = opened(logits=lambda t: {9: 0.0}, ngram_draft=True)
    backend.enqueue(job("a", 20, prompt=(1, 2, 3, 7, 8, 1, 2, 3)))
    backend.iterate()
    [*_, end] = backend.cancel("a")
    assert (end.new_tokens, end.accepted_tokens) == (1, 0)
    assert end.draft_tokens > 0


def test_a_prompt_that_is_shorter_than_an_ngram_harms_none_that_runs_with_it(expected, guessing):
    short = [job(f"of {n}", 8, prompt=(5,) * n, sampling=GREEDY) for n in (1, 2)]
    jobs = [*short, job("other", 8, prompt=conversation(QUESTIONS[0]), sampling=GREEDY)]
    assert texts(guessing, jobs) == expected(*jobs)


def test_a_limit_is_kept_to_the_token(expected, guessing):
    """Also where it is less than what is guessed at once, and where pages end."""
    lengths = [1, 2, 3, 4, 5, 6, 40]
    text = (conversation(QUESTIONS[0]) * 20)[:240]
    jobs = [job(f"job{n}", n, prompt=text, sampling=GREEDY, ignore_eos=True) for n in lengths]
    found = texts(guessing, jobs)
    assert [found[f"job{n}"][1:3] for n in lengths] == [("length", n) for n in lengths]
    assert found == expected(*jobs)


def test_stop_strings_logprobs_and_forms_are_kept(plain, expected, guessing):
    cold = conversation(QUESTIONS[0])
    form = constraints.regex("([0-9]{2}, ){20}end")
    jobs = [
        job("stop", 100, prompt=cold, sampling=GREEDY, stop_strings=("17", "9, 10")),
        job("kept", 100, prompt=cold, sampling=GREEDY, stop_strings=("12",), min_new_tokens=90),
        job("logprobs", 40, prompt=cold, sampling=GREEDY, num_logprobs=2),
        job("scored", 30, prompt=cold, sampling=GREEDY, num_logprobs=0, prompt_logprobs=1),
        job("form", 100, prompt=cold, sampling=Sampling(seed=1), constraint=form),
        job("short", 30, prompt=cold[:1], sampling=GREEDY),
    ]
    assert texts(guessing, jobs) == expected(*jobs)
    for one in jobs[2:4]:
        ours, theirs = (run(backend, one)[one.identifier] for backend in (guessing, plain))
        assert told(ours)[0] == told(theirs)[0]
        for mine, its in zip(told(ours)[1], told(theirs)[1], strict=True):
            assert mine.token_id == its.token_id
            assert mine.logprob == pytest.approx(its.logprob, abs=1e-3)


def test_a_pair_beside_others_suspends_guessing(expected, guessing):
    first, *others = text_jobs()
    guided = replace(GREEDY, cfg_scale=2.0)
    more = {"negative_prompt": first.prompt, "sampling": guided, "ignore_eos": True}
    pair = job("pair", 60, prompt=others[0].prompt, **more)
    jobs = [first, pair, *others]
    assert texts(guessing, jobs) == expected(*jobs)
    assert free_pages(guessing) == guessing._generator.max_pages


def test_a_draft_model_keeps_up_while_guessing_is_suspended(opened):
    """With itself for a draft model, both caches must hold the same, but for the pair's tokens."""
    backend = opened(DEMO, max_batch_size=8, draft_model=DEMO)
    prompts = [conversation(text) for text in QUESTIONS]
    more = {"negative_prompt": prompts[0], "sampling": Sampling(cfg_scale=2.0)}
    pair = job("pair", 10, prompt=prompts[1], **more)
    long = job("long", 60, prompt=prompts[2], sampling=GREEDY, ignore_eos=True)
    scored = job("scored", 2, prompt=prompts[3], sampling=GREEDY, prompt_logprobs=0)
    run(backend, long, pair, scored)
    generator, num_tokens = backend._generator, 0
    for page in generator.all_pages:
        if any(page.sequence[0, : len(ids)].tolist() == [*ids] for ids in prompts[:2]):
            continue
        tokens = slice(page.page_index * 256, page.page_index * 256 + page.kv_position)
        num_tokens += page.kv_position
        for ours, drafts in zip(generator.cache.states, generator.draft_cache.states, strict=True):
            torch.testing.assert_close(ours[0, tokens], drafts[0, tokens], atol=1e-3, rtol=1e-3)
    assert num_tokens > len(long.prompt) + 60


def test_a_draft_model_knows_a_prompt_that_was_computed_beside_others(opened):
    """With itself for a draft model, nearly all guesses are right."""
    backend = opened(DEMO, draft_model=DEMO, is_overlapping=True)
    end = run(backend, text_jobs()[1])["job1"][-1]
    assert end.accepted_tokens > 0.8 * end.draft_tokens > 0


def test_jobs_that_fail_or_leave_take_nothing_along(expected, guessing):
    jobs = text_jobs()
    broken = Sampling(allowed_token_ids=(5,), banned_token_ids=(5,))
    events = run(guessing, jobs[0], job("broken", 20, sampling=broken), *jobs[1:])
    assert isinstance(events["broken"][-1], Failed)
    guessing.enqueue(replace(jobs[1], identifier="leaves"))
    for _ in range(12):
        guessing.iterate()
    assert guessing.cancel("leaves")[-1].finish_reason == "cancelled"
    assert free_pages(guessing) == guessing._generator.max_pages
    assert texts(guessing, jobs) == expected(*jobs)


def test_a_step_that_fails_is_tried_again(opened, expected):
    """The repair of the page table must take back the guesses, too."""
    failures = iter(())

    def wrap(forward):
        def fail_twice(input_ids, *args, **kwargs):
            if input_ids.shape[-1] == 5 and next(failures, False):
                raise RuntimeError("bad luck")
            return forward(input_ids, *args, **kwargs)

        return fail_twice

    backend = opened(DEMO, wrap=wrap, max_batch_size=8, ngram_draft=True)
    failures = iter([False] * 3 + [True] + [False] * 2 + [True])
    jobs = text_jobs()
    assert texts(backend, jobs) == expected(*jobs)
    assert next(failures, None) is None
    assert free_pages(backend) == backend._generator.max_pages


def test_pages_hold_no_more_than_was_computed_where_a_step_fails(opened):
    """Or the job would not get beyond the page's border."""

    def before(input_ids, is_prefill):
        if failing and not is_prefill:
            raise failing.pop()

    failing = []
    backend = opened(logits=lambda t: {7: 0.0}, before=before, ngram_draft=True)
    backend.enqueue(job("a", 300))
    for _ in range(9):
        backend.iterate()
    [sequence] = backend._jobs["a"].sequences
    computed = sequence.kv_position
    failing.append(RuntimeError("bad luck"))
    assert backend.iterate() == []
    held = [page.kv_position for page in sequence.allocated_pages]
    assert sum(held) == sequence.kv_position == computed
    events = []
    while backend.num_jobs:
        events += backend.iterate()
    assert events[-1].new_tokens == 300


def test_any_traffic_gives_the_texts_that_there_are_without(expected, guessing):
    """Shared prefixes, some that end at once, all lengths, cancelled ones; pages are validated."""
    rng = random.Random(1)
    base = [conversation(text) for text in QUESTIONS]
    jobs = []
    for i in range(8):
        prompt = rng.choice(base) * rng.choice([1, 1, 6, 14])
        cut = rng.randrange(1, len(prompt) + 1)
        seed = rng.randrange(100)
        sampling = rng.choice([GREEDY, Sampling(seed=seed), Sampling(seed=seed, temperature=0.4)])
        number = rng.choice([1, 3, 20, 60])
        jobs.append(job(f"job{i}", number, prompt=prompt[:cut], sampling=sampling))
    generator = guessing._generator
    generator.validate_cache = generator._ExLlamaV2DynamicGenerator___validate_cache
    assert texts(guessing, jobs) == expected(*jobs)
    del generator.validate_cache
    assert free_pages(guessing) == generator.max_pages


def test_the_context_ends_where_guesses_would_pass_it(model_path):
    backend = exl2_backend(model_path, max_seq_len=256, ngram_draft=True, num_draft_tokens=7)
    most = admission.max_new_tokens(100, None, backend.open(), backend._config)
    one = job("x", most, prompt=tuple(range(300, 400)), sampling=GREEDY, ignore_eos=True)
    assert run(backend, one)["x"][-1].new_tokens == most == 256 - 100 - 7
    backend.close()


def test_a_draft_model_may_have_more_rows_than_there_are_tokens(opened, expected, noisy, tmp_path):
    """What it guesses there is wrong, and no more: often, since those rows' logits are doubled."""
    path = shutil.copytree(noisy, tmp_path / "wide")
    edit(path / "config.json", vocab_size=ModelDir.read(noisy).config["vocab_size"] + 64)
    weights = load_file(path / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.cat((weights[name], 2 * weights[name][:64]))
    save_file(weights, path / "model.safetensors")
    backend = opened(DEMO, max_batch_size=8, draft_model=str(path))
    assert texts(backend, text_jobs()) == expected(*text_jobs())


def swap(path):
    model = json.loads((path / "tokenizer.json").read_text())["model"]
    a, b = list(model["vocab"])[100:102]
    model["vocab"] |= {a: model["vocab"][b], b: model["vocab"][a]}
    edit(path / "tokenizer.json", model=model)


def shrink(path):
    edit(path / "config.json", vocab_size=ModelDir.read(DEMO).config["vocab_size"] - 1)


OTHERS = "tokens differ from the main model's"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swap, OTHERS),
        (shrink, OTHERS),
        (
            lambda path: edit(path / "config.json", max_position_embeddings=1024),
            "draft model supports only 1024 tokens",
        ),
    ],
    ids=["vocabulary", "size", "context"],
)
def test_a_draft_model_that_does_not_match_is_refused(noisy, tmp_path, change, message):
    path = shutil.copytree(noisy, tmp_path / "other")
    change(path)
    with pytest.raises(engine.ModelError, match=message, check=names("draft_model")):
        exl2_backend(DEMO, draft_model=str(path)).open()


def test_a_draft_model_has_the_lengths_of_its_model(opened, model_path):
    loaded = opened(draft_model=model_path, max_seq_len=512)._loaded
    draft, own = (
        (config.max_seq_len, config.max_input_len, config.max_batch_size)
        for config in (loaded.draft_model.config, loaded.model.config)
    )
    assert draft == own and own[0] == 512
