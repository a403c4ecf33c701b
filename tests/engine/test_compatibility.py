"""Models that ExLlamaV2 would load and read wrongly."""

import json
import pathlib
from types import SimpleNamespace

import pytest

from switchyard import engine
from switchyard.engine.backends.exl2 import cpu
from switchyard.engine.config import ModelConfig
from switchyard.engine.model.model_dir import ModelDir

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


@pytest.fixture
def read(model_path, directory):
    """The configuration of the small model as on a GPU, after changes of its config.json."""
    cpu.install()
    from switchyard.engine.backends.exl2.load.config import read_config

    def read(changes, **config):
        content = json.loads(pathlib.Path(model_path, "config.json").read_text()) | changes
        content = {name: value for name, value in content.items() if value is not None}
        (directory / "config.json").write_text(json.dumps(content))
        path = str(directory)
        return read_config(ModelConfig(path, "name", **config), ModelDir.read(path), "cuda")

    return read


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": "many"}, r"TypeError: .*hidden_size"),
        ({"hidden_size": None}, r"ValueError: Missing any .*'hidden_size'"),
        ({"num_hidden_layers": 99}, r"ValueError: Could not find model\.layers\.2\..* in model$"),
    ],
    ids=str,
)
def test_what_exllamav2_stops_at_is_told(read, changes, reason):
    message = rf"ExLlamaV2 can't read the model in [^ ]*: {reason}"
    with pytest.raises(engine.ModelError, match=message):
        read(changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},  # up to what the model was made for
        {"rope_scaling": {**YARN, "beta_fast": 64, "attention_factor": 1.0}},
        {"rope_theta": None, "rope_parameters": {**YARN, "rope_theta": 500.0}},
        {"quantization_config": {"quant_method": "gptq", "bits": 4}},
        {"quantization_config": {"quant_method": "exl2", "bits": 5.5}},
        {"architectures": ["MistralForCausalLM"]},
    ],
    ids=str,
)
def test_what_exllamav2_knows_is_let_through(read, changes):
    read(changes)


def test_a_base_where_transformers_5_writes_it_is_honoured(read):
    named = {"rope_type": "default", "rope_theta": 70.0}
    assert read({"rope_theta": None, "rope_parameters": named}).rotary_embedding_base == 70.0
    linear = {"rope_type": "linear", "rope_theta": 70.0, "factor": 4.0}
    assert read({"rope_theta": None, "rope_parameters": linear}).scale_pos_emb == 4.0


def test_yarn_leaves_a_model_its_own_length_if_that_is_more(read):
    assert read({"rope_scaling": {**YARN, "factor": 2.0}}).max_seq_len == 2048


def test_a_model_without_local_layers_gets_no_base_for_them(read):
    assert read({"rope_local_base_freq": 70.0}).rotary_embedding_base_alt is None


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen3MoeForCausalLM"])
def test_queries_and_keys_of_qwen_3_keep_their_mean(architecture):
    """Their norm is an RMS norm; ExLlamaV2 takes that of Cohere's, which subtracts it."""
    cpu.install()
    from exllamav2.architecture import ExLlamaV2ArchParams

    from switchyard.engine.backends.exl2.load.compatibility import mend

    arch = ExLlamaV2ArchParams(architecture, {})
    mend(SimpleNamespace(architecture=architecture, arch=arch, rotary_embedding_base_alt=None), {})
    assert arch.lm.headnorm == "rmsnorm"


def test_a_longer_context_needs_a_scaled_embedding(read):
    for more in ({}, {"rope_scale": 0.5}):
        told = "made for 2048 tokens; a longer context needs rope_alpha"
        with pytest.raises(engine.ModelError, match=told):
            read({}, max_seq_len=4096, **more)
    assert read({}, max_seq_len=4096, rope_scale=2.0).scale_pos_emb == 2.0
    config = read({}, max_seq_len=4096, rope_alpha=2.5)
    assert (config.scale_alpha_value, config.max_seq_len) == (2.5, 4096)
