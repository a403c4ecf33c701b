"""What a model takes, told by its files alone: as ExLlamaV2 itself counts it, for each family."""

import json
import os
import shutil
from pathlib import Path

import pytest

from switchyard import engine
from switchyard.engine.backends.exl2 import cpu
from switchyard.engine.config import ModelConfig
from switchyard.engine.model.footprint import measure
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.shape import read_shape
from switchyard.engine.model.tensors import read_sizes
from tests.conftest import DEMO
from tests.gpu.architectures.make import make, make_twin
from tests.gpu.architectures.specs import SPECS
from tests.hostile import edit

SERVED = sorted(name for name, spec in SPECS.items() if spec.refusal is None)


def librarys_own(path):
    """Modules and work space by the library's modules, which are not loaded."""
    cpu.install()
    from exllamav2 import ExLlamaV2, ExLlamaV2Config
    from exllamav2.attn import ExLlamaV2Attention
    from exllamav2.parallel_decoder import ExLlamaV2ParallelDecoder

    from switchyard.engine.backends.exl2.load.compatibility import mend

    config = ExLlamaV2Config(path)
    mend(config, ModelDir.read(path).config)
    config.max_input_len, config.max_batch_size = 512, 2
    _, *modules = ExLlamaV2(config).modules
    attention = (ExLlamaV2Attention, ExLlamaV2ParallelDecoder)
    sizes = [(m.weight_footprint(), isinstance(m, attention)) for m in modules]
    return config, sizes, max(m.scratch_space_fixed() for m in modules)


def of(path):
    [footprint], _ = measure(ModelConfig(path, "name", max_batch_size=65))
    return footprint


def compare(path):
    shape, found = read_shape(ModelDir.read(path).config), of(path)
    config, sizes, scratch = librarys_own(path)
    assert shape.max_seq_len == config.max_seq_len
    assert (shape.num_kv_heads, shape.head_dim) == (config.num_key_value_heads, config.head_dim)
    assert found.weights == pytest.approx(sum(size for size, _ in sizes), rel=0.01)
    cached = [size for size, is_cached in found.modules if is_cached]
    assert cached == pytest.approx([size for size, is_cached in sizes if is_cached], rel=0.02)
    rows, queries = 1024, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    tables = 2 * 2 * shape.max_seq_len * config.head_dim * shape.num_tables
    # Those of 65 places, with graphs for three lengths of context.
    logits = 2 * 3 * (1 + 2 + 4 + 8 + 12 + 16 + 24 + 32 + 48 + 64 + 65 + 96) * config.vocab_size
    activations = 2 * rows * (4 * config.hidden_size + queries + 2 * keys)
    workspaces = 2 * 32 * 2**20
    if shape.num_experts:
        activations += 2 * rows * 4 * shape.inner_size
        workspaces += 32 * 2**20
    assert found.fixed == scratch + tables + logits + activations + workspaces


@pytest.fixture(autouse=True)
def no_monitor(monkeypatch):
    """Without the monitor of transformers' bars, a thread that never ends."""
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)


@pytest.mark.parametrize("name", SERVED)
def test_each_family_takes_what_the_library_counts(name, model_path, tmp_path):
    make(name, tmp_path / "model", Path(model_path))
    shutil.copy(f"{model_path}/tokenizer.json", tmp_path / "model")
    compare(str(tmp_path / "model"))
    if SPECS[name].has_twin:
        make_twin(tmp_path / "model", tmp_path / "twin")
        compare(str(tmp_path / "twin"))


def test_the_embedded_model_takes_what_the_library_counts():
    compare(f"{DEMO}-exl2")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is not a .safetensors file"),
        (b"\xff" * 100, "it is not a .safetensors file"),
        (b"\x10\0\0\0\0\0\0\0{", "can't be read"),
        (b'\x09\0\0\0\0\0\0\0{"a": [] }', "can't be read"),
        (b'\x09\0\0\0\0\0\0\0{"a": []}', "can't be read"),
        (b'\x09\0\0\0\0\0\0\0{"a": {}}', "can't be read"),
        (b"\x02\0\0\0\0\0\0\x0010", "can't be read"),
    ],
)
def test_a_damaged_file_is_named(directory, content, says):
    (directory / "model.safetensors").write_bytes(content)
    with pytest.raises(engine.ModelError, match=rf"model\.safetensors .*{says}.*download it again"):
        read_sizes(directory)


def write(file, dtype, size, name):
    one = {"dtype": dtype, "shape": [10], "data_offsets": [0, size]}
    header = json.dumps({"__metadata__": {"format": "pt"}, name: one}).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))


@pytest.mark.parametrize(
    ("dtype", "size", "loaded"),
    [
        *(("F64", 80, 20), ("F32", 40, 20), ("F16", 20, 20), ("BF16", 20, 20)),
        *(("I32", 40, 40), ("I16", 20, 20), ("U8", 10, 10)),
    ],
)
def test_floats_of_any_width_are_loaded_as_float16_others_as_is(tmp_path, dtype, size, loaded):
    write(tmp_path / "model.safetensors", dtype, size, "a")
    write(tmp_path / "another.safetensors", dtype, 2 * size, "b")
    assert read_sizes(tmp_path) == {"a": loaded, "b": 2 * loaded}


def test_a_download_that_was_cut_off_is_told_with_its_size(directory):
    file = directory / "model.safetensors"
    whole = file.stat().st_size
    os.truncate(file, whole - 100)
    told = f"it is cut off after {whole - 100} of {whole} bytes"
    with pytest.raises(engine.ModelError, match=told):
        read_sizes(directory)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_hidden_layers": 9}, r"lack weights of layer \d \(there are 9.*is a file"),
        ({"hidden_size": None}, "config.json has no hidden_size or d_model or n_embd"),
        ({"vocab_size": "many"}, "vocab_size is 'many', but must be a whole number"),
    ],
)
def test_what_is_missing_is_named(directory, changes, says):
    edit(directory / "config.json", **changes)
    with pytest.raises(engine.ModelError, match=says):
        of(str(directory))


def test_layers_beyond_those_of_the_config_are_not_loaded(directory):
    whole = of(str(directory))
    edit(directory / "config.json", num_hidden_layers=1)  # of 2
    assert len(of(str(directory)).modules) == len(whole.modules) - 2


def test_what_gemma_3_leaves_out_of_its_configuration_is_as_the_library_has_it():
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    shape = read_shape({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    assert (shape.num_heads, shape.num_kv_heads, shape.head_dim) == (8, 4, 256)
    assert shape.vocab_size == 262208
