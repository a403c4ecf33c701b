"""Float16 copies of an EXL2 model's weights, on a GPU."""

import gc

import pytest
import torch

from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import prompt, texts_of
from tests.gpu.test_options import estimated, num_same

pytestmark = pytest.mark.gpu

ALWAYS, MANY = 1, 48  # tokens


def texts(backend, number=MANY):
    return texts_of(backend, 24, [20 + 17 * i for i in range(number)])


def float32(model):
    """transformers' model with the weights that exllamav2 unpacks."""
    import transformers

    config = transformers.LlamaConfig.from_pretrained(model.config.model_dir)
    del config.quantization_config
    exact = transformers.LlamaForCausalLM(config).cuda().float()
    found = {}
    for name, parameter in exact.named_parameters():
        module = model.modules_dict[name.removesuffix(".weight")]
        if hasattr(module, "get_weight_tensor_dq"):
            found[name] = module.get_weight_tensor_dq().T[: len(parameter)]
        elif hasattr(module, "embedding"):
            found[name] = module.embedding.weight
        else:
            found[name] = module.weight
    exact.load_state_dict({name: tensor.float() for name, tensor in found.items()}, strict=False)
    return exact


def logits(backend, token_ids):
    """The last logits of each prompt, (prompts, vocabulary), in one pass of the model's."""
    generator = backend._generator
    rows, length = token_ids.shape
    params = generator.get_paged_params(
        rows,
        torch.arange(rows, dtype=torch.int32)[:, None],
        torch.zeros(rows, dtype=torch.int32),
        q_len=length,
    )
    with torch.inference_mode():
        found = backend._loaded.model.forward_chunk(
            input_ids=token_ids, attn_params=params, cache=generator.cache, loras=None
        )["logits"]
    return found[:, -1].float()


@pytest.mark.parametrize("cache_mode", ["float16", "Q8", "Q4"])
def test_texts_are_nearly_those_without_copies(serve, quantized, cache_mode):
    config = {"max_batch_size": MANY, "cache_mode": (cache_mode,), "cache_tokens": MANY * 1280}
    usual = texts(serve(quantized, unpacked_weights="off", **config))
    backend = serve(quantized, **config)
    found = backend.occupancy().kept
    assert found.num_bytes
    least = {"float16": 40, "Q8": 36, "Q4": 24}[cache_mode]
    assert num_same(usual, texts(backend), 12) >= least


@pytest.mark.parametrize("rows", [1, 4, 16, 64])
def test_logits_are_nearer_to_float32s_than_without_copies(serve, quantized, rows):
    room = {"max_batch_size": 64, "cache_tokens": 64 * 256}
    backend = serve(quantized, products="exllamav2", **room)
    kept = backend._loaded.passes._unpacked
    token_ids = torch.tensor([prompt(i, 8) for i in range(rows)])
    with torch.inference_mode():
        exact = float32(backend._loaded.model)(token_ids.cuda()).logits[:, -1]
    errors = {}
    for least in (ALWAYS, 10**9):
        kept.min_tokens = least
        found = logits(backend, token_ids).cuda()[:, : exact.shape[1]]
        assert torch.isfinite(found).all()
        errors[least] = float((found - exact).norm() / exact.norm())
    print(
        f"{rows} rows: relative error {errors[ALWAYS]:.2e} with copies, {errors[10**9]:.2e} without"
    )
    assert errors[ALWAYS] <= errors[10**9]


@pytest.mark.parametrize("unpacked_weights", ["auto", 0.1])
def test_memory_is_as_estimated(serve, quantized, unpacked_weights):
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    backend = serve(quantized, unpacked_weights=unpacked_weights)
    copies, [used] = estimated(backend)
    assert backend.occupancy().kept.num_bytes == copies
    taken = torch.cuda.memory_allocated() - before
    print(f"{taken} bytes of {used + copies} estimated, {copies} of them copies")
    assert taken <= used + copies


def test_copies_are_given_up_where_memory_runs_out(serve, quantized):
    backend = serve(quantized)
    usual, kept = texts(backend, 8), backend.occupancy().kept.num_bytes
    before = torch.cuda.memory_allocated()
    backend._lacks_memory = True
    backend.reset()
    assert backend.occupancy().kept.num_bytes == 0
    assert torch.cuda.memory_allocated() <= before - kept
    assert num_same(usual, texts(backend, 8), 12) >= 6
    backend._lacks_memory = True
    backend.reset()  # nothing more to give up
    assert num_same(usual, texts(backend, 8), 12) >= 6


def test_seeded_texts_are_sampled_with_copies(serve, quantized):
    backend = serve(quantized, max_batch_size=MANY)
    found = texts_of(backend, 16, [20] * MANY, *(Sampling(seed=i) for i in range(MANY)))
    assert len(set(found)) > MANY // 2
