"""Logprobs of completions and prompts, against the model computed directly."""

import json
import pathlib

import pytest
import torch
from safetensors.torch import load_file, save_file

from switchyard.engine.messages import Chunk, Failed, Finished, PromptLogprobs
from switchyard.engine.sampling import Sampling
from tests.engine import dense_llama
from tests.engine.exl2.drive import chain, free_pages, pieces, prompt
from tests.engine.forced import ending, run
from tests.hostile import edit
from tests.scripted import job

pytestmark = pytest.mark.over_exl3("hardship")

GREEDY = Sampling(temperature=0.0)
WILD = Sampling(temperature=1.5, top_k=50, repetition_penalty=1.3, seed=3)


@pytest.fixture(scope="module")
def direct(model_path):
    return direct_logprobs(model_path)


def direct_logprobs(model_path):
    """Log-softmax of the model's logits behind each of `token_ids`, float64."""
    tensors = load_file(f"{model_path}/model.safetensors")
    config = json.loads((pathlib.Path(model_path) / "config.json").read_text())
    return lambda ids: torch.log_softmax(dense_llama.logits(tensors, config, list(ids)), dim=-1)


def told(events):
    """(token ids, logprobs) of all chunks."""
    chunks = [event for event in events if isinstance(event, Chunk)]
    ids = [token_id for chunk in chunks for token_id in chunk.token_ids]
    return ids, [entry for chunk in chunks for entry in chunk.logprobs]


def check(entries, token_ids, rows, num_top):
    """`entries` are those of `token_ids`, whose logprobs are in `rows`."""
    for entry, token_id, row in zip(entries, token_ids, rows, strict=True):
        assert entry.token_id == token_id
        assert entry.logprob == pytest.approx(row[token_id].item(), abs=1e-4)
        best = row.topk(num_top)
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
        assert all(value == pytest.approx(row[i].item(), abs=1e-4) for i, value in entry.top)


@pytest.mark.parametrize("sampling", [GREEDY, WILD], ids=["greedy", "wild"])
@pytest.mark.parametrize("num_top", [0, 1, 5])
def test_logprobs_are_those_of_the_model_whatever_the_sampling(backend, direct, sampling, num_top):
    one = job("a", 12, prompt=prompt(1, 30), sampling=sampling, num_logprobs=num_top)
    ids, entries = told(run(backend, one)["a"])
    rows = direct([*one.prompt, *ids])[len(one.prompt) - 1 : -1]
    assert len(ids) == 12
    check(entries, ids, rows, num_top)


def test_a_job_that_did_not_ask_has_none(backend):
    chunks = [e for e in run(backend, job("a", 3))["a"] if isinstance(e, Chunk)]
    assert chunks and all(chunk.logprobs is None for chunk in chunks)


def test_logprobs_stay_with_tokens_that_are_held_back(opened, backend):
    first, second = pieces(backend, "class", " the")
    scripted = opened(logits=chain(7, first, second, 2))
    one = job("a", 9, prompt=(7,), stop_strings=("class the!",), num_logprobs=1)
    events = run(scripted, one)["a"]
    [chunk] = [e for e in events if isinstance(e, Chunk)]  # told at the end alone
    assert chunk.token_ids == (first, second)  # not the end token
    assert [entry.token_id for entry in chunk.logprobs] == [first, second]
    assert [entry.top[0][0] for entry in chunk.logprobs] == [first, second]


@pytest.mark.parametrize("stop_token_ids", [(), (9,)])
def test_the_token_that_ends_a_text_is_told_apart_from_it(opened, stop_token_ids):
    end = (*stop_token_ids, 2)[0]
    backend = opened(logits=chain(7, 8, end))
    more = {"prompt": (7,), "sampling": GREEDY, "stop_token_ids": stop_token_ids}
    events = run(backend, job("a", 9, num_logprobs=1, **more), job("b", 9, **more))
    limit = run(backend, job("a", 1, num_logprobs=1, **more))["a"]
    last = events["a"][-1]
    assert told(events["a"])[0] == [8]
    assert (last.new_tokens, last.stop_token.token_id) == (1, end)
    assert last.stop_token.top == ((end, last.stop_token.logprob),)
    assert events["b"][-1].stop_token is None
    assert limit[-1].finish_reason == "length" and limit[-1].stop_token is None


@pytest.mark.over_exl3("always")
@pytest.mark.parametrize("length", [1, 2, 30, 256, 257, 258, 700])
def test_the_logprobs_of_a_prompt_are_those_of_a_direct_pass(backend, direct, length):
    one = job("a", 2, prompt=prompt(length, length), sampling=GREEDY, prompt_logprobs=2)
    events = run(backend, one)["a"]
    kinds = [type(event) for event in events]
    assert kinds.count(PromptLogprobs) == 1
    assert kinds.index(PromptLogprobs) < kinds.index(Chunk)
    [scored] = [event for event in events if isinstance(event, PromptLogprobs)]
    assert scored.logprobs[0] is None
    check(scored.logprobs[1:], one.prompt[1:], direct(one.prompt)[:-1], 2)
    assert free_pages(backend) == backend._generator.max_pages


def test_what_follows_a_scored_prompt_is_what_follows_it_otherwise(backend):
    same = {"prompt": prompt(90, 513), "sampling": GREEDY, "ignore_eos": True}
    plain, scored, after = (
        ending(run(backend, job("a", 300, prompt_logprobs=asked, **same))["a"])
        for asked in (None, 0, None)
    )
    assert plain.text == scored.text == after.text
    assert (scored.last.cached_tokens, scored.last.new_tokens) == (0, 300)
    assert after.last.cached_tokens > 0


def test_a_cached_prompt_and_one_beside_running_jobs_are_scored_in_whole(backend, direct):
    same = prompt(91, 600)
    run(backend, job("warm", 3, prompt=same))
    running = job("running", 40, prompt=same, sampling=GREEDY, ignore_eos=True)
    alone = run(backend, running)["running"]
    scored = [job(f"s{i}", 2, prompt=same, prompt_logprobs=0, sampling=GREEDY) for i in range(2)]
    together = run(backend, running, *scored)
    rows = direct(same)[:-1]
    for one in scored:
        [event] = [e for e in together[one.identifier] if isinstance(e, PromptLogprobs)]
        check(event.logprobs[1:], same[1:], rows, 0)
    assert ending(together["running"]).text == ending(alone).text
    assert free_pages(backend) == backend._generator.max_pages


@pytest.mark.parametrize("length", [1, 256, 600])
def test_a_prompt_can_be_scored_and_nothing_generated(backend, length):
    one = job("a", 0, prompt=prompt(5, length), prompt_logprobs=0)
    beside = job("b", 20, prompt=prompt(6, 20), sampling=GREEDY, ignore_eos=True)
    events = run(backend, beside, one)
    *others, scored, end = events["a"]
    assert end == Finished("a", "length", length, 0, 0) and len(scored.logprobs) == length
    assert not [event for event in others if isinstance(event, Chunk)]
    assert events["b"][-1].new_tokens == 20
    assert free_pages(backend) == backend._generator.max_pages and backend.num_jobs == 0


def test_a_prompt_is_scored_with_the_models_loras(backend, monkeypatch):
    """The CPU has none: what the pass is given is looked at, and left out."""
    generator, used = backend._generator, []
    forward = generator.model.forward_chunk

    def forward_chunk(*args, loras=None, **rest):
        used.append(loras)
        return forward(*args, **rest)

    monkeypatch.setattr(generator.model, "forward_chunk", forward_chunk)
    monkeypatch.setattr(generator, "current_loras", ["terse"])
    run(backend, job("a", 0, prompt=prompt(5, 20), prompt_logprobs=0))
    assert used and all(loras == ["terse"] for loras in used)


def test_a_prompt_that_is_only_scored_takes_no_step(opened):
    lengths = []

    def wrap(forward):
        def wrapped(input_ids, *args, **kwargs):
            lengths.append(input_ids.shape[1])
            return forward(input_ids, *args, **kwargs)

        return wrapped

    backend = opened(wrap=wrap)
    lengths.clear()
    run(backend, job("a", 0, prompt=prompt(7, 600), prompt_logprobs=0))
    assert lengths == [512, 87]


def test_what_follows_a_page_that_was_scored_is_not_taken_for_a_beginning(backend):
    one = job("a", 9, prompt=prompt(92, 257), sampling=GREEDY, ignore_eos=True, prompt_logprobs=0)
    ids = [i for e in run(backend, one)["a"] if isinstance(e, Chunk) for i in e.token_ids]
    last = run(backend, job("b", 2, prompt=(one.prompt[256], *ids)))["b"][-1]
    assert last.cached_tokens == 0


def failing(fails):
    """Passes of which `fails(input_ids, kwargs)` raise."""

    def wrap(forward):
        def wrapped(input_ids, *args, **kwargs):
            if fails(input_ids, kwargs):
                raise RuntimeError("no logits")
            return forward(input_ids, *args, **kwargs)

        return wrapped

    return wrap


def test_scores_lost_with_a_failed_step_are_told_by_the_next(opened):
    left = []  # steps of one token a sequence that fail
    backend = opened(wrap=failing(lambda ids, _: ids.shape[1] == 1 and left and left.pop()))
    backend.enqueue(job("running", 30, sampling=GREEDY, ignore_eos=True))
    backend.iterate()
    for identifier, length in (("a", 0), ("b", 3)):
        backend.enqueue(job(identifier, length, prompt=prompt(8, 20), prompt_logprobs=0))
        left.append(True)
        assert not [e for e in backend.iterate() if isinstance(e, PromptLogprobs)]
        events = backend.iterate()
        assert next(type(e) for e in events if e.identifier == identifier) is PromptLogprobs
    backend.cancel("running")


def test_a_prompt_that_fails_while_it_is_scored_fails_alone(opened):
    is_scored = lambda ids, more: ids.shape[1] > 1 and not more.get("preprocess_only")  # noqa: E731
    backend = opened(wrap=failing(is_scored))
    beside = job("b", 5, sampling=GREEDY, ignore_eos=True)
    events = run(backend, beside, job("a", 0, prompt=prompt(5, 9), prompt_logprobs=0))
    assert isinstance(events["a"][-1], Failed) and "no logits" in str(events["a"][-1].error)
    assert events["b"][-1].new_tokens == 5
    assert free_pages(backend) == backend._generator.max_pages


def test_a_completions_logprobs_are_those_that_it_has_as_a_prompt(opened, directory):
    """For a model with more rows than its tokenizer has tokens."""
    tensors = load_file(directory / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = torch.cat((tensors[name], tensors[name][-300:]))
    save_file(tensors, directory / "model.safetensors")
    edit(directory / "config.json", vocab_size=4096 + 300)
    backend = opened(str(directory))
    one = job("a", 12, prompt=prompt(1, 30), sampling=GREEDY, num_logprobs=0)
    ids, entries = told(run(backend, one)["a"])
    scored = job("b", 0, prompt=(*one.prompt, *ids), prompt_logprobs=0)
    [whole] = [e for e in run(backend, scored)["b"] if isinstance(e, PromptLogprobs)]
    expected = [entry.logprob for entry in whole.logprobs[-12:]]
    assert [entry.logprob for entry in entries] == pytest.approx(expected, abs=1e-4)
