"""Matrix products of our own for EXL2 weights, on a GPU."""

import itertools
import json
import pathlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from switchyard.engine.backends.exl.loaded import PromptRows
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import GREEDY, texts_of
from tests.engine.forced import ending, run
from tests.gpu.exact import error, exact_logits, random_tokens, stepped_logits
from tests.scripted import job

pytestmark = pytest.mark.gpu

MANY = 64
ROOM = {"max_batch_size": MANY, "cache_tokens": MANY * 256}


@pytest.fixture(scope="module")
def changed(quantized, tmp_path_factory):
    """The same model with other entries of config.json, and other tensors."""

    def changed(architecture, tensors=None, **entries):
        path = tmp_path_factory.mktemp("changed")
        for file in pathlib.Path(quantized).iterdir():
            if file.suffix != ".safetensors":
                (path / file.name).write_bytes(file.read_bytes())
        config = json.loads((path / "config.json").read_text())
        config |= {"architectures": [architecture], **entries}
        (path / "config.json").write_text(json.dumps(config))
        found = load_file(pathlib.Path(quantized, "model.safetensors"))
        save_file(found | (tensors or {}), path / "model.safetensors", {"format": "pt"})
        return str(path)

    return changed


@pytest.fixture(scope="module")
def qwen(changed):
    gen = torch.Generator().manual_seed(0)
    widths = {"q": 1024, "k": 256, "v": 256}
    biases = {
        f"model.layers.{i}.self_attn.{name}_proj.bias": torch.randn(size, generator=gen).half()
        for i in range(12)
        for name, size in widths.items()
    }
    return changed("Qwen2ForCausalLM", biases, model_type="qwen2", use_sliding_window=False)


@pytest.fixture(params=["llama", "qwen"])
def model_dir(request, quantized, qwen):
    return {"llama": quantized, "qwen": qwen}[request.param]


def test_unpacked_weights_equal_exllamav2s_in_every_bit(serve, model_dir):
    usual, own = serve(model_dir, products="exllamav2"), serve(model_dir, products="auto")
    assert own.info.products == "own"
    modules = own._loaded.model.modules_dict
    number = 0
    with torch.inference_mode():
        for key, linear in usual._loaded.model.modules_dict.items():
            if getattr(linear, "q_handle", None) and hasattr(linear, "get_weight_tensor_dq"):
                number += 1
                ours = modules[key].get_weight_tensor_dq()
                assert torch.equal(ours, linear.get_weight_tensor_dq()), key
    assert number == 12 * 7 + 1


@pytest.mark.parametrize("rows", [1, 7, 16, 32, 64])
def test_logits_are_nearer_to_float32s_than_exllamav2s(serve, model_dir, rows):
    found = {}
    for way in ("exllamav2", "auto"):
        backend = serve(model_dir, products=way, unpacked_weights="off", **ROOM)
        with torch.inference_mode():
            token_ids = random_tokens(backend._loaded.model, rows, 6)
            exact = exact_logits(backend._loaded.model, token_ids)
            found[way] = error(stepped_logits(backend, token_ids), exact)
        backend.close()
    print(f"{rows} rows: relative error {found['auto']:.2e}, exllamav2's {found['exllamav2']:.2e}")
    assert found["auto"] <= found["exllamav2"]


@pytest.mark.parametrize("rows", [1, 8, 16, 32, 64])
def test_repeated_runs_have_the_same_bits(serve, quantized, rows):
    backend = serve(quantized, products="auto", unpacked_weights="off", **ROOM)
    with torch.inference_mode():
        token_ids = random_tokens(backend._loaded.model, rows, 6)
        first = stepped_logits(backend, token_ids)
        assert all(torch.equal(first, stepped_logits(backend, token_ids)) for _ in range(20))


@pytest.mark.parametrize("number", [1, 5])
def test_a_seeds_text_is_the_same_in_ten_runs_at_a_fixed_batch_size(serve, quantized, number):
    backend = serve(quantized, products="auto", unpacked_weights="off", **ROOM)
    sampling = Sampling(temperature=1.5, seed=7)
    texts = set()
    for _ in range(10):
        backend.reset()
        texts.add(tuple(texts_of(backend, 64, [40] * number, *[sampling] * number)))
    assert len(texts) == 1


def test_prompts_of_any_length_are_computed(serve, quantized):
    """By the kernels, by graphs over unpacked weights, and longer than a graph."""
    lengths = (3, 40, 64, 65, 300, 1100)
    texts = {}
    for way in ("exllamav2", "auto"):
        backend = serve(quantized, products=way, unpacked_weights="off")
        texts[way] = texts_of(backend, 8, lengths)
    assert sum(a == b for a, b in zip(*texts.values(), strict=True)) >= len(lengths) - 1


@pytest.mark.parametrize("cache_mode", ["float16", "Q8"])
def test_prompts_beside_rows_are_computed_as_in_passes_of_their_own(serve, quantized, cache_mode):
    """The first row continues one of the prompts."""
    pages = np.arange(2 * MANY + 8, dtype=np.int32).reshape(-1, 2)
    room = {"max_batch_size": MANY, "cache_tokens": pages.size * 256}
    backend = serve(quantized, cache_mode=(cache_mode,), **room)
    passes = backend._loaded.passes
    gen = torch.Generator().manual_seed(0)

    def some(*shape):
        return torch.randint(1000, shape, generator=gen)

    shapes, num_compared = [(1, 64), (4, 64), (3, 128), (1, 256), (1, 512)], 0
    for rows, (count, length), spare in itertools.product((1, 20, MANY), shapes, (0, 5)):
        own, others = pages[:rows].copy(), pages[MANY:][:count]
        for first in range(0, rows, 16):
            context = own[first : first + 16]
            assert passes.compute(PromptRows(some(len(context), 32), [0] * len(context), context))
        own[0], positions = others[0], [length - 1, *[32] * (rows - 1)]
        table = np.pad(own, ((0, 0), (0, spare)))
        prompts, token_ids = PromptRows(some(count, length), [0] * count, others), some(rows)
        token_ids[0] = prompts.token_ids[0, -1]
        if not passes.can_join(prompts, *table.shape):
            continue
        joint = passes.run(token_ids, positions, table, prompts).clone()
        assert passes.compute(prompts)
        apart = passes.run(token_ids, positions, table)
        assert error(joint, apart) < 5e-3, (rows, count, length)
        num_compared += 1
    assert num_compared > 10


def test_memory_is_as_with_exllamav2s_products(serve, quantized):
    taken = {}
    for way in ("exllamav2", "auto"):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        backend = serve(quantized, products=way, unpacked_weights="off")
        taken[way] = torch.cuda.memory_allocated() - before
        backend.close()
    more = taken["auto"] - taken["exllamav2"]
    print(f"{more} bytes more than {taken['exllamav2']}")
    assert more < 32 * 2**20


def test_copies_are_given_up_and_our_products_stay(serve, quantized):
    backend = serve(quantized, products="auto", **ROOM)
    assert backend.occupancy().kept.num_bytes
    backend._lacks_memory = True
    backend.reset()
    assert backend.occupancy().kept.num_bytes == 0
    with torch.inference_mode():
        token_ids = random_tokens(backend._loaded.model, 8, 4)
        exact = exact_logits(backend._loaded.model, token_ids)
        assert error(stepped_logits(backend, token_ids), exact) < 5e-3


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"products": "exllamav2"}, "chosen in the settings"),
        ({"ngram_draft": True}, "tokens are guessed"),
    ],
)
def test_settings_that_keep_exllamav2s_products(serve, quantized, config, reason):
    backend = serve(quantized, **{"products": "auto", **config})
    assert backend.info.products == f"exllamav2: {reason}"
    assert ending(run(backend, job("a", 4, sampling=GREEDY, ignore_eos=True))["a"])


def test_a_family_that_keeps_exllamav2s_products(serve, larger, changed):
    assert serve(larger, products="auto").info.products == "exllamav2: its weights are not EXL2"
    windowed = changed("MistralForCausalLM", model_type="mistral", sliding_window=512)
    assert serve(windowed, products="auto").info.products == "exllamav2: its attention has a window"


def test_a_failed_check_falls_back_to_exllamav2s_products(serve, quantized, monkeypatch, caplog):
    module = "switchyard.engine.backends.exl2.cuda.products.compare"
    monkeypatch.setattr(f"{module}.MOST", 1e-9)
    backend = serve(quantized, products="auto")
    assert backend.info.products.startswith("exllamav2: a product of ")
    assert "failed their check" in caplog.text
    assert ending(run(backend, job("a", 4, sampling=GREEDY, ignore_eos=True))["a"])


def test_unload_and_load_leave_no_memory(serve, quantized):
    def taken():
        backend = serve(quantized, products="auto", unpacked_weights="off")
        backend.close()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    first = taken()
    assert taken() <= first
