"""What is not served of EXL3 is refused before anything is loaded, with what to do."""

import json
import pathlib
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from switchyard.engine.backends import exl3, make_backend
from switchyard.engine.config import Lora, ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.model.loadable import check_loadable
from tests.conftest import DEMO

CONFIG = {
    **{"architectures": ["LlamaForCausalLM"], "hidden_size": 128, "intermediate_size": 256},
    **{"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64},
    **{"vocab_size": 2048, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5},
    "quantization_config": {"quant_method": "exl3", "version": "1.6.5", "bits": 4.0},
}
MATRICES = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


@pytest.fixture
def make(tmp_path):
    """A directory whose files have the names and sizes of a small EXL3 model."""

    def make(without=(), **changes):
        tensors = {
            "model.embed_tokens.weight": torch.zeros(2048, 128).half(),
            "model.norm.weight": torch.zeros(128).half(),
        }
        for matrix in MATRICES:
            name = f"model.layers.0.{matrix}"
            tensors[f"{name}.trellis"] = torch.zeros(8, 8, 64, dtype=torch.int16)
            tensors[f"{name}.suh"] = torch.zeros(128).half()
            tensors[f"{name}.svh"] = torch.zeros(128).half()
        save_file(
            {k: v for k, v in tensors.items() if k not in without}, tmp_path / "a.safetensors"
        )
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (tmp_path / file).write_bytes(pathlib.Path(DEMO, file).read_bytes())
        return ModelConfig(str(tmp_path), "m", device="cuda")

    return make


def quantized(**changes):
    return {"quantization_config": {**CONFIG["quantization_config"], **changes}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architectures": ["Qwen3NextForCausalLM"]}, "keeps a state for each text"),
        ({"architectures": ["Qwen3VLForConditionalGeneration"]}, "is not served for EXL3"),
        ({"architectures": ["NewForCausalLM"]}, "is unknown to ExLlamaV3"),
        (quantized(bits=9), "bits of EXL3 weights is 9, and must be 1 to 8"),
        (quantized(version="1.7.0"), "exllamav3 1.7.0, which is newer than 1.6.5"),
        ({"without": ["model.layers.0.mlp.up_proj.suh"]}, "lack model.layers.0.mlp.up_proj.suh"),
    ],
)
def test_a_model_that_is_not_served(make, changes, says):
    with pytest.raises(ModelError) as refused:
        check_loadable(make(**changes))
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "setting",
    [
        *({"tensor_parallel": True}, {"gpu_split": (8.0, 8.0)}, {"rope_scale": 2.0}),
        *({"rope_alpha": 2.0}, {"ngram_draft": True}, {"draft_model": DEMO}),
        {"loras": (Lora(DEMO, "one"),)},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_a_setting_that_is_not_honoured(make, setting):
    [name] = setting
    with pytest.raises(ModelError, match=f"{name} is not for EXL3 models") as refused:
        check_loadable(replace(make(), **setting))
    assert refused.value.param == name


def test_a_model_that_is_served_is_measured(make):
    [footprint], lengths = check_loadable(make())
    trellis, signs = 8 * 8 * 64 * 2, 2 * 128 * 2
    assert footprint.weights == 7 * (trellis + signs) + 128 * 2 + 2048 * 128 * 2
    assert lengths.max_seq_len == 1024


def test_it_needs_a_gpu(make):
    with pytest.raises(ModelError, match="the weights are quantized"):
        check_loadable(replace(make(), device="cpu"))
    with pytest.raises(ModelError, match="EXL3 models need a CUDA device"):
        make_backend(replace(make(), device="cpu"))


def test_what_is_not_compiled_is_not_compiled_while_clients_wait(monkeypatch):
    monkeypatch.delitem(exl3.sys.modules, exl3.EXTENSION, raising=False)
    monkeypatch.setattr(exl3.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match="no compiled extension"):
        exl3.check_installed()
