"""EXL3 models on a GPU, with exllamav3's compiled extension."""

import importlib.util
from pathlib import Path

import pytest
import torch

from switchyard.engine.messages import Finished
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import GREEDY, free_pages, prompt
from tests.engine.forced import run, step
from tests.gpu.exl3_models import FAMILIES, VOCABULARY, in_transformers, write
from tests.gpu.test_cuda import check_constraint
from tests.gpu.test_options import estimated
from tests.scripted import job

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("exllamav3_ext") is None, reason="exllamav3 is not compiled here"
    ),
]

LENGTHS = (5, 255, 256, 257, 700)  # tokens of prompts
MOST_BEHIND = 0.05  # of the logits' standard deviation: a token that is as good as the best
MOST_ERROR = 0.02  # of logits, relative to transformers' in float32


@pytest.fixture(scope="module", params=FAMILIES)
def exl3_path(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("exl3")
    write(path, request.param)
    return str(path)


@pytest.fixture(scope="module")
def llama_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("exl3")
    write(path, "LlamaForCausalLM")
    return str(path)


def ids_of(seed, length):
    return tuple(i % VOCABULARY for i in prompt(seed, length))


def tokens(events):
    return [i for event in events if hasattr(event, "token_ids") for i in event.token_ids]


def jobs(lengths=LENGTHS):
    for n in lengths:
        yield n, job(f"job{n}", 48, prompt=ids_of(n, n), sampling=GREEDY, ignore_eos=True)


@torch.inference_mode()
def own_logits(backend, token_ids):
    """After each token but the last, by one pass without a cache, (tokens, vocabulary)."""
    library = backend._loaded.model.library
    logits = library.forward(torch.tensor([token_ids]), {"attn_mode": "flash_attn_nc"})
    return logits[0, :-1, :VOCABULARY].float().cpu()


def behind(backend, prompt_ids, token_ids):
    """How far the logit of each token is behind the best."""
    rows = own_logits(backend, [*prompt_ids, *token_ids])[len(prompt_ids) - 1 :]
    own = rows.gather(1, torch.tensor(token_ids)[:, None])[:, 0]
    return float(((rows.max(-1).values - own) / rows.std()).max())


def test_texts_are_the_models_alone_together_and_from_cached_pages(serve, exl3_path):
    backend = serve(exl3_path, cache_tokens=65536, max_batch_size=64)
    assert backend._loaded.passes is not None
    every = dict(jobs())
    many = dict(jobs(range(20, 84)))
    for found, asked in [
        *((run(backend, one), {n: one}) for n, one in every.items()),
        *((run(backend, *every.values()), every) for _ in range(2)),
        *((run(backend, *list(many.values())[:n]), many) for n in (3, 9, 33, 64)),
    ]:
        for n, one in asked.items():
            if one.identifier in found:
                token_ids = tokens(found[one.identifier])
                assert len(token_ids) == 48
                assert behind(backend, one.prompt, token_ids) < MOST_BEHIND, n


@torch.inference_mode()
def test_logits_are_those_of_transformers(serve, exl3_path):
    backend = serve(exl3_path, cache_tokens=16384)
    token_ids = [*ids_of(1, 900), 0]
    found = own_logits(backend, token_ids)
    model = in_transformers(exl3_path, backend._loaded.model.library)
    expected = model(torch.tensor([token_ids]).cuda()).logits[0, :-1].float().cpu()
    error = float((found - expected).norm() / expected.norm())
    same = float((found.argmax(-1) == expected.argmax(-1)).float().mean())
    print(f"{Path(exl3_path).name}: relative error {error:.1e}, {same:.1%} of first tokens")
    assert error < MOST_ERROR


def test_a_seed_and_a_guidance_pair_are_served_and_a_second_load_is_the_first(serve, exl3_path):
    backend = serve(exl3_path, cache_tokens=16384)
    ids = ids_of(1, 40)
    seeded = job("seeded", 32, prompt=ids, sampling=Sampling(temperature=1.0, seed=5))
    pair = job(
        *("pair", 16),
        prompt=ids,
        negative_prompt=ids[:30],
        sampling=Sampling(temperature=0.0, cfg_scale=1.5),
    )
    first = [tokens(run(backend, one)[one.identifier]) for one in (seeded, pair)]
    backend.reload()
    assert [tokens(run(backend, one)[one.identifier]) for one in (seeded, pair)] == first


def test_a_constraint_holds_beside_free_jobs(serve, llama_path):
    check_constraint(serve(llama_path, cache_tokens=16384), ids_of)


def test_a_cancelled_job_leaves_its_pages_and_its_neighbour_alone(serve, llama_path):
    backend = serve(llama_path, cache_tokens=16384)
    one, other = (job(f"job{i}", 64, prompt=ids_of(i, 300), sampling=GREEDY) for i in (1, 2))
    for each in (one, other):
        backend.enqueue(each)
    events = [event for _ in range(8) for event in step(backend)]
    backend.cancel(other.identifier)
    while not any(isinstance(event, Finished) for event in events):
        events += step(backend)
    found = [e for e in events if e.identifier == one.identifier]
    assert len(tokens(found)) == 64
    assert behind(backend, one.prompt, tokens(found)) < MOST_BEHIND
    assert free_pages(backend) == backend._generator.max_pages


@pytest.mark.parametrize("length", [255, 256])
@pytest.mark.parametrize("error", [RuntimeError("a fault"), torch.OutOfMemoryError("none left")])
def test_a_step_that_fails_is_tried_again(serve, llama_path, length, error):
    backend = serve(llama_path, cache_tokens=16384)
    passes, faults = backend._loaded.passes, []
    own_run = passes.run

    def run_or_fail(*args, **options):
        if faults:
            raise faults.pop()
        return own_run(*args, **options)

    passes.run = run_or_fail
    one = job("job", 20, prompt=ids_of(1, length), sampling=GREEDY, ignore_eos=True)
    first = tokens(run(backend, one)["job"])
    faults += [error, error]
    events = run(backend, one)["job"]
    assert not faults and isinstance(events[-1], Finished)
    assert tokens(events) == first


def test_memory_is_as_estimated(serve, llama_path):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    backend = serve(llama_path, cache_tokens=65536)
    taken = torch.cuda.memory_reserved() - before
    _, [told] = estimated(backend)
    print(f"reserved {taken / 2**20:.0f} MiB, estimated {told / 2**20:.0f}")
    assert abs(taken - told) < max(0.03 * told, 300 * 2**20)
