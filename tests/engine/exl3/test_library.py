"""What this server knows of exllamav3 is true of the version that is pinned."""

import importlib.metadata
import inspect
import json
import pathlib

import pytest
from packaging.requirements import Requirement

from switchyard.engine.backends import exl3
from switchyard.engine.config import PAGE_SIZE, ModelConfig
from switchyard.engine.memory.estimate import MODES
from switchyard.engine.model.exl3 import OTHERS, PLAIN, STATEFUL, VERSION
from switchyard.engine.model.footprint import measure
from tests.conftest import DEMO, ROOT
from tests.engine.exl3 import stand_in

SMALL = {
    **{"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 2048},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "rms_norm_eps": 1e-5},
    **{"max_position_embeddings": 2048, "rope_theta": 10000.0, "hidden_act": "silu"},
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def library():
    stand_in.install()
    import exllamav3

    return exllamav3


def test_the_version_is_the_one_that_is_installed_for_tests_and_on_gpus():
    version = importlib.metadata.version("exllamav3")
    assert version == exl3.EXLLAMAV3_VERSION == ".".join(map(str, VERSION))
    lines = (ROOT / "requirements-exl3.txt").read_text().splitlines()
    pins = [Requirement(line.partition(" ;")[0]) for line in lines if line.startswith("exllamav3")]
    assert pins and all(exl3.WHEEL in str(pin) for pin in pins)
    assert f"torch=={exl3.WHEEL.rpartition('torch')[2]}" in lines


def test_every_architecture_that_it_reads_is_served_or_refused_by_name(library):
    from exllamav3.architecture.architectures import get_architectures

    known = [*PLAIN, *STATEFUL, *OTHERS]
    assert len(set(known)) == len(known)
    assert set(known) == set(get_architectures())


def test_architectures_with_a_state_are_those_that_it_gives_one(library):
    from exllamav3.architecture.architectures import get_architectures

    for name, found in get_architectures().items():
        source = inspect.getsource(inspect.getmodule(found["model_class"]))
        if '"recurrent_states"' in source:
            assert name not in PLAIN, name


@pytest.mark.parametrize("mode", [*MODES, "8,8", "5,4", "2,7"])
@pytest.mark.parametrize(
    ("name", "head_dim"),
    [("LlamaForCausalLM", 80), ("Qwen3ForCausalLM", 128), ("MistralForCausalLM", 64)],
)
def test_a_cache_takes_what_is_estimated(library, tmp_path, name, head_dim, mode):
    from switchyard.engine.backends.exl3.loader import own_cache

    text = json.dumps({**SMALL, "architectures": [name], "head_dim": head_dim})
    (tmp_path / "config.json").write_text(text)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).write_bytes(pathlib.Path(DEMO, file).read_bytes())
    [footprint], _ = measure(ModelConfig(str(tmp_path), "m", backend="exl3"), bits=4)
    model = library.Model.from_config(library.Config.from_directory(str(tmp_path)))
    cache = own_cache(model, mode, 4 * PAGE_SIZE)
    assert not model.get_recurrent_layers()
    size = sum(int(layer.storage_size()) for layer in cache.layers.values())
    assert footprint.cache(mode, 4 * PAGE_SIZE) == size
