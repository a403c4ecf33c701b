"""Which float16 copies of weights have room on a GPU, by arithmetic."""

from dataclasses import replace

import pytest

from switchyard.app.config import read_settings
from switchyard.engine.backends import refuse_gpu_settings
from switchyard.engine.backends.exl2 import cpu
from switchyard.engine.config import Lora, ModelConfig
from switchyard.engine.memory.unpacked import unpacked_sizes
from switchyard.engine.model.footprint import measure
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.shape import read_shape
from tests.engine.test_memory import DEMO, DEMO_EXL2, MIB, MODEL, exl2_config, memory


@pytest.mark.parametrize(
    ("free", "config", "number"),
    [
        ((4,), {}, 20),
        ((1.75,), {}, 0),  # the cache takes all that the weights leave
        ((2.5,), {}, 7),
        ((4,), {"unpacked_weights": 0.25}, 2),
        ((4,), {"unpacked_weights": "off"}, 0),
        ((1, 4), {}, 0),  # on two GPUs
        ((4,), {"ngram_draft": True}, 0),
        ((4,), {"loras": (Lora("path", "name"),)}, 0),
    ],
)
def test_float16_copies_of_weights_take_what_the_cache_leaves(free, config, number):
    """Each of 20 modules takes 100 MiB more, and all of them 32 MiB of work space."""
    model = replace(MODEL, unpacked=(100 * MIB,) * 20, unpacked_fixed=32 * MIB)
    found = memory(*free, footprints=(model,), **config).unpacked("float16", 4096)
    assert found == [100 * MIB] * number


def test_the_copies_are_as_large_as_the_librarys_own_matrices():
    cpu.install()
    from exllamav2 import ExLlamaV2
    from exllamav2.attn import ExLlamaV2Attention
    from exllamav2.linear import ExLlamaV2Linear
    from exllamav2.mlp import ExLlamaV2MLP

    [footprint], _ = measure(ModelConfig(DEMO_EXL2, "name"))
    modules = ExLlamaV2(exl2_config(DEMO_EXL2)).modules[1:]
    kinds = (ExLlamaV2Attention, ExLlamaV2MLP, ExLlamaV2Linear)
    sizes = [2 * module.numel() * isinstance(module, kinds) for module in modules]
    assert list(footprint.unpacked) == sizes


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["Qwen3ForCausalLM"]},
        {"quantization_config": None},
        {"quantization_config": {"quant_method": "gptq"}},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 512},
    ],
)
def test_a_model_whose_layers_differ_has_no_copies(changes):
    model_config = ModelDir.read(DEMO_EXL2).config
    shape = read_shape(model_config)
    sizes = {"lm_head.q_weight": 1}
    assert unpacked_sizes(shape, model_config, sizes, 2048)
    assert unpacked_sizes(shape, {**model_config, **changes}, sizes, 2048) == ()


def test_one_of_several_models_has_copies_only_where_it_asks_for_them(tmp_path):
    """They would take the memory of the others."""

    def kept(**settings):
        [one] = read_settings(**settings).served()
        return one.config.unpacked_weights

    assert kept() == "auto"
    for several in ({"models": [{"model": "x"}]}, {"models_dir": str(tmp_path)}):
        assert kept(**several) == "off"
        refuse_gpu_settings(read_settings(**several).served()[0].config)  # on a CPU it serves, too
        assert kept(**several, unpacked_weights=2.5) == 2.5


@pytest.mark.parametrize(
    ("path", "config", "is_counted"),
    [
        (DEMO_EXL2, {}, True),
        (DEMO_EXL2, {"products": "exllamav2"}, False),
        (DEMO_EXL2, {"ngram_draft": True}, False),
        (DEMO_EXL2, {"loras": (Lora("path", "name"),)}, False),
        (DEMO, {}, False),
    ],
)
def test_our_own_products_take_work_space_where_they_may_serve(path, config, is_counted):
    [footprint], _ = measure(ModelConfig(path, "name", **config))
    # Two results of 768 numbers for each of 512 tokens, beside unfinished sums.
    more = 20 * MIB + 2 * 512 * 2 * 768
    assert footprint.products == more * is_counted
    assert footprint.beside("float16", 256) == footprint.fixed + more * is_counted
