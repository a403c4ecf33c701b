"""Which models keep exllamav2's products, and why, before anything is loaded."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from switchyard.engine.config import Lora, ModelConfig
from tests.engine.test_memory import DEMO, DEMO_EXL2, exl2_config


@pytest.fixture
def ask(monkeypatch):
    def ask(path=DEMO_EXL2, has_passes=True, capability=(8, 6), **config):
        from exllamav2 import ExLlamaV2

        from switchyard.engine.backends.exl2.cuda.products.obstacle import obstacle

        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
        settings = ModelConfig(str(path), "name", **{"products": "auto", **config})
        return obstacle(settings, ExLlamaV2(exl2_config(str(path))), has_passes, 0)

    return ask


@pytest.fixture
def changed(tmp_path):
    """The demo model with other entries of config.json, and other tensors."""

    def changed(tensors=(), **entries):
        shutil.copytree(DEMO_EXL2, tmp_path, dirs_exist_ok=True)
        config = json.loads((tmp_path / "config.json").read_text()) | entries
        (tmp_path / "config.json").write_text(json.dumps(config))
        found = load_file(tmp_path / "output.safetensors")
        for name, change in dict(tensors).items():
            found[name] = change(found[name])
        save_file(found, tmp_path / "output.safetensors", {"format": "pt"})
        return tmp_path

    return changed


def test_the_demo_model_has_none(ask):
    assert ask() is None


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"products": "exllamav2"}, "chosen in the settings"),
        ({"tensor_parallel": True}, "tensor_parallel"),
        ({"loras": (Lora("path", "name"),)}, "it has LoRAs"),
        ({"ngram_draft": True}, "tokens are guessed"),
        ({"capability": (7, 5)}, "the GPU's compute capability is 7.5, under 8.0"),
        ({"has_passes": False}, "several GPUs, no flash-attn, or layers that aren't plain"),
        ({"path": DEMO}, "its weights are not EXL2"),
    ],
)
def test_each_obstacle_is_named(ask, asked, reason):
    assert ask(**asked) == reason


def test_an_amd_gpu_is_one(ask, monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert ask() == "the GPU is AMD's"


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "its weights are not EXL2"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": 512},
            "its attention has a window",
        ),
        ({"architectures": ["Qwen3ForCausalLM"]}, "it is a Qwen3ForCausalLM"),
    ],
)
def test_a_family_may_be_one(ask, changed, entries, reason):
    assert ask(changed(**entries)) == reason


def test_small_groups_of_rows_are_one(ask, changed):
    """Half of the first group is moved into the second."""
    key = "model.layers.1.mlp.up_proj"

    def moved(groups):
        groups[3] -= 16 * int(groups[0]) // 32
        return groups

    path = changed({f"{key}.q_groups": moved})
    assert ask(path) == f"{key} has groups whose number of rows is not a multiple of 32"
