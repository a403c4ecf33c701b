"""Model files that the CPU's Llama loads, and those that it refuses."""

import sys
import threading
import types

import pytest
import torch
from safetensors.torch import save_file

from switchyard.engine.backends.exl2 import cpu
from switchyard.engine.errors import ModelError
from tests.engine import dense_llama
from tests.engine.small_llama import CONFIG, Scenario, assert_close, open_model, write

if torch.cuda.is_available():
    pytest.skip("the CPU backend refuses a machine with a GPU", allow_module_level=True)


def refusal(path, config, tensors):
    write(path, config, tensors)
    with pytest.raises(ModelError) as raised:
        open_model(path).load()
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.fixture(scope="module")
def plain():
    return dense_llama.random_tensors(CONFIG, torch.float16)


Q_PROJ = "model.layers.1.self_attn.q_proj"


def without(tensors, name):
    return {key: value for key, value in tensors.items() if key != name}


@pytest.mark.parametrize("quantized", ["q_weight", "qweight"])
def test_quantized_tensors_are_refused(tmp_path, plain, quantized):
    tensors = without(plain, f"{Q_PROJ}.weight") | {f"{Q_PROJ}.{quantized}": torch.zeros(4, 4)}
    assert f"quantized ({Q_PROJ}.{quantized})" in refusal(tmp_path, CONFIG, tensors)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"sliding_window": 128}, "sliding_window"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ({"logit_scale": 0.5}, "logit_scale"),
        ({"scale_emb": 12}, "scale_emb"),
        ({"scale_depth": 1.4}, "scale_depth"),
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"num_key_value_heads": 3}, "3 key/value heads"),
        ({"head_dim": 15}, "15"),
        ({"architectures": ["MistralForCausalLM"]}, "not MistralForCausalLM"),
        ({"quantization_config": {"quant_method": "exl2"}}, "the weights are quantized"),
        ({"num_hidden_layers": 1}, "is 1, but the files contain at least 2 layers"),
    ],
)
def test_what_a_plain_llama_does_not_have_is_refused(tmp_path, plain, changes, named):
    assert named in refusal(tmp_path, CONFIG | changes, plain)


UP, NORM = "model.layers.0.mlp.up_proj.bias", "model.norm.weight"


@pytest.mark.parametrize(
    ("name", "tensor", "told"),
    [
        (f"{Q_PROJ}.bias", torch.zeros(64), f"biases ({Q_PROJ}.bias)"),
        (UP, torch.zeros(64), f"biases ({UP})"),
        (NORM, torch.ones(47), f"{NORM} is (47,), but config.json requires (48,)"),
        (NORM, torch.ones(48, dtype=torch.int32), f"{NORM} is torch.int32"),
    ],
)
def test_tensors_that_a_plain_llama_does_not_have_are_refused(tmp_path, plain, name, tensor, told):
    assert told in refusal(tmp_path, CONFIG, plain | {name: tensor})


def test_a_missing_tensor_is_refused(tmp_path, plain):
    write(tmp_path, CONFIG, plain)
    model = open_model(tmp_path)
    # After ExLlamaV2Config has looked for it: a file replaced in between.
    save_file(without(plain, f"{Q_PROJ}.weight"), tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"no tensor {Q_PROJ}.weight"):
        model.load()


def test_a_broken_file_is_refused(tmp_path, plain):
    write(tmp_path, CONFIG, plain)
    model = open_model(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors can't be read"):
        model.load()


# Loading and generating


def test_progress_is_told_layer_by_layer(tmp_path, plain):
    write(tmp_path, CONFIG, plain)
    calls = []
    open_model(tmp_path).load(lambda *call: calls.append(call))
    assert calls == [(0, 2), (1, 2), (2, 2)]


def test_weights_are_no_part_of_their_file_any_more(tmp_path):
    """A model that is written again, in place, garbles nothing of the one that is served."""
    scenario = Scenario(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    size = file.stat().st_size
    with file.open("r+b") as written:
        written.write(b"\xff" * size)
    assert_close(scenario.forward([(0, [1], [0])])["logits"][0], scenario.expected([1]))


def test_unload_releases_the_weights(tmp_path):
    scenario = Scenario(tmp_path / "model")
    scenario.model.unload()
    scenario.model.unload()
    with pytest.raises(AssertionError):
        scenario.forward([(0, [1], [0])])
    scenario.model.load()
    assert_close(scenario.forward([(0, [1], [0])])["logits"][0], scenario.expected([1]))


def test_install_may_be_called_again():
    cpu.install()
    extension = sys.modules["exllamav2_ext"]
    assert isinstance(extension, types.ModuleType)
    cpu.install()
    assert sys.modules["exllamav2_ext"] is extension


def test_only_the_thread_that_imports_is_silent(capsys):
    out = cpu._Without(threading.get_ident())
    assert out.write("of the import") == len("of the import")
    other = threading.Thread(target=out.write, args=("of the host",))
    other.start()
    other.join(20)
    assert capsys.readouterr().out == "of the host"
