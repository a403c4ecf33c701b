"""Layers over the kernels' source, on the CPU: of a conversion by exllamav2, 2 to 8 bits."""

import shutil

import pytest
import torch

from tests.gpu.exact import error, exact_logits

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@pytest.fixture
def make_demo(monkeypatch):
    from exllamav2 import attn, linear

    from switchyard.engine.backends.exl2.cuda.products import attention, compare, layers
    from tests.engine.products.loaded import Demo, flash_attn_with_kvcache

    monkeypatch.setattr(attn, "flash_attn_with_kvcache", flash_attn_with_kvcache, raising=False)
    monkeypatch.setattr(attention, "multiprocessors", lambda device: 100)
    monkeypatch.setattr(linear.ExLlamaV2Linear, "device", lambda self: "cpu")

    def make_demo(**options):
        demo = Demo(**options)
        for module in (attention, compare, layers, linear):
            monkeypatch.setattr(module, "ext_c", demo.extension())
        return demo

    return make_demo


@pytest.fixture
def demo(make_demo):
    return make_demo()


@pytest.fixture
def kernels():
    from tests.engine.products.loaded import CpuKernels

    return CpuKernels()


def replaced(demo, kernels):
    from switchyard.engine.backends.exl2.cuda.kept import multiplying
    from switchyard.engine.backends.exl2.cuda.products.layers import OwnProducts

    products = OwnProducts(demo.model, demo.cache, kernels)
    products.replace(multiplying(demo.model))
    return products


def linears(demo):
    return [demo.model.modules_dict[key] for key in demo.weights]


@torch.inference_mode()
@pytest.mark.parametrize("is_changed", [False, True], ids=["as it is", "biases and orders"])
def test_a_models_logits_are_float32s(make_demo, kernels, is_changed):
    """Prompts of more tokens than the kernels take, of fewer, and steps of several rows."""
    demo = make_demo(is_changed=is_changed)
    token_ids = torch.randint(0, 2048, (2, 62), generator=torch.Generator().manual_seed(0))
    exact = exact_logits(demo.model, token_ids)
    replaced(demo, kernels)
    begin = 0
    for length in (40, 20, 1, 1):
        end = begin + length
        found = demo.run(token_ids[:, begin:end], begin)
        assert error(found[..., :2048], exact[:, begin:end]) < 3e-3
        begin = end


@torch.inference_mode()
@pytest.mark.parametrize("is_changed", [False, True], ids=["as it is", "biases and orders"])
def test_each_matrix_unpacks_to_exllamav2s_bits(make_demo, kernels, is_changed):
    demo = make_demo(is_changed=is_changed)
    biases = {one.key: one.q_tensors.get("bias") for one in linears(demo)}
    replaced(demo, kernels)
    for one in linears(demo):
        assert torch.equal(one.get_weight_tensor_dq(), demo.weights[one.key]), one.key
        assert not is_changed or torch.equal(one.get_bias_tensor(), biases[one.key]), one.key


@torch.inference_mode()
@pytest.mark.parametrize(
    ("length", "blocks", "num_splits"), [(1, 0.39, 0), (1, 0.41, 1), (2, 0.41, 0)]
)
def test_steps_of_many_rows_divide_no_short_context(
    demo, kernels, monkeypatch, length, blocks, num_splits
):
    """`blocks`: heads of keys in all rows, for each multiprocessor."""
    from exllamav2 import attn

    from switchyard.engine.backends.exl2.cuda.products import attention

    replaced(demo, kernels)
    own, found = attn.flash_attn_with_kvcache, set()

    def attend(**options):
        found.add(options["num_splits"])
        return own(**options)

    monkeypatch.setattr(attn, "flash_attn_with_kvcache", attend)
    heads = 2 * demo.model.config.num_key_value_heads
    monkeypatch.setattr(attention, "multiprocessors", lambda device: heads / blocks)
    demo.run(torch.ones((2, length), dtype=torch.long), 0)
    assert found == {num_splits}


@torch.inference_mode()
def test_all_of_exllamav2s_matrices_are_freed(demo, kernels):
    products = replaced(demo, kernels)
    assert set(demo.weights) <= set(demo.freed) and demo.freed.count(1) == 4
    assert all(one.q_handle is None and one.q_tensors is None for one in linears(demo))
    products.close()
    assert not any("forward" in module.__dict__ for module in demo.model.modules[1:-2])


@torch.inference_mode()
def test_the_comparison_passes_for_the_kernels_and_notices_other_weights(demo, kernels):
    from switchyard.engine.backends.exl2.cuda.products.compare import (
        ProductsRefused,
        compare_products,
    )

    space = demo.model.get_device_context(-1).scratch
    compare_products(linears(demo)[:3], kernels, space)
    kernels.multiply = lambda matrices, inputs, outputs, **_: outputs[0].zero_()
    with pytest.raises(
        ProductsRefused, match=r"of 8 rows with .*v_proj has a relative error of 1\.0e\+00"
    ):
        compare_products(linears(demo)[2:3], kernels, space)
    weights = demo.weights["lm_head"]
    weights[7, 9] += 0.01
    with pytest.raises(ProductsRefused, match="lm_head differ"):
        compare_products(linears(demo)[-1:], kernels, space)


@torch.inference_mode()
def test_a_pass_is_compared_by_its_logits(demo, kernels):
    from switchyard.engine.backends.exl2.cuda.products.compare import (
        ProductsRefused,
        compare_passes,
        whole_pass,
    )

    replaced(demo, kernels)
    found = whole_pass(demo.model, demo.cache, 256, torch.device("cpu"))
    assert found.shape == (2, 1, 2048)
    compare_passes(found, found * 1.01)
    compare_passes(found, found / 0)  # exllamav2's overflow proves nothing
    for other in (-found, found / 0):
        with pytest.raises(ProductsRefused, match="whole pass"):
            compare_passes(other, found)
