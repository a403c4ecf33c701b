"""What is not served of EXL3 is refused before anything is loaded, with what to do."""

import importlib.machinery
import json
import pathlib
import sys
import types
from dataclasses import replace

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from switchyard.cli import main
from switchyard.cli.estimate import CANNOT_LOAD
from switchyard.engine.backends import exl3, make_backend, refuse_gpu_settings
from switchyard.engine.config import Lora, ModelConfig
from switchyard.engine.errors import ModelError, NoRoom
from switchyard.engine.memory import gpus
from switchyard.engine.memory.estimate import GIB, Memory
from switchyard.engine.memory.gpus import Gpu
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

FLOAT = {"quantization_config": None}
MATRIX = "model.layers.0.mlp.up_proj"


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
        ({"architectures": ["Qwen3NextForCausalLM"]}, "keeps a state for each sequence"),
        ({"architectures": ["Qwen3VLForConditionalGeneration"]}, "is not supported with ExLlamaV3"),
        ({"architectures": ["NewForCausalLM"]}, "is unknown to ExLlamaV3"),
        (quantized(bits=9), "bits of EXL3 weights is 9, but must be from 1 to 8"),
        (quantized(version="1.7.0"), "exllamav3 1.7.0, which is newer than 1.6.5"),
        (quantized(version="2"), "exllamav3 2, which is newer than 1.6.5"),
        ({"without": [f"{MATRIX}.suh"]}, f"lack {MATRIX}.suh"),
        ({"without": [f"{MATRIX}.svh"]}, f"lack {MATRIX}.svh"),
        ({"without": [f"{MATRIX}.trellis"]}, f"lack {MATRIX}.trellis"),
        ({**FLOAT, "architectures": ["GptOssForCausalLM"]}, "keeps a state for each sequence"),
        ({**FLOAT, "architectures": ["DeepseekV3ForCausalLM"]}, "is not supported with ExLlamaV3"),
        ({"architectures": ["LlamaForCausalLM"] * 2}, "architectures must name one"),
        ({"architectures": "LlamaForCausalLM"}, "architectures must name one"),
    ],
)
def test_a_model_that_is_not_served(make, changes, says):
    config = make(**changes)
    with pytest.raises(ModelError) as refused:
        check_loadable(config)
    assert says in str(refused.value) and "\n" not in str(refused.value)
    done = CliRunner().invoke(main, ["estimate", config.path, "--gpu", "24GB"])
    assert done.exit_code == CANNOT_LOAD and done.output == f"switchyard: {refused.value}\n"


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
    with pytest.raises(ModelError, match=f"{name} doesn't work with ExLlamaV3") as refused:
        check_loadable(replace(make(), **setting))
    assert refused.value.param == name


def test_bits_of_the_cache_are_for_exl3_alone(make):
    check_loadable(replace(make(), cache_mode=("5,4",)))
    with pytest.raises(ModelError, match=r"cache_mode 5,4 is for EXL3.* float16, Q8, Q6, Q4"):
        check_loadable(ModelConfig(f"{DEMO}-exl2", "m", "cuda", cache_mode=("Q8", "5,4")))


def test_estimate_refuses_such_a_setting_too(make):
    done = CliRunner().invoke(main, ["estimate", make().path, "--tensor-parallel"])
    assert done.exit_code == CANNOT_LOAD
    assert "switchyard: tensor_parallel doesn't work with ExLlamaV3" in done.output


def test_no_exl3_model_guesses_for_another(make):
    config = ModelConfig(DEMO, "m", draft_model=make().path)
    with pytest.raises(ModelError, match="needs ExLlamaV3") as refused:
        check_loadable(config)
    assert refused.value.param == "draft_model"


def test_one_gpu_has_all_of_a_model_or_it_is_refused_with_what_would_fit(make):
    config = replace(make(), gpu_reserve=0.25, cache_tokens=2**22)
    footprints, _ = check_loadable(config)
    whole = footprints[0].whole("float16", 2**22)
    room = whole + GIB // 4
    assert Memory(config, footprints, [room - 1, room], 1024).place("float16", 2**22) == [0, whole]
    with pytest.raises(
        NoRoom, match=r"one must hold all of an EXL3 model.*would fit: cache_mode float16"
    ):
        Memory(config, footprints, [room - 1, room - 1], 1024).caches()


def test_what_a_second_gpu_would_take_is_not_added(make):
    def sums(*gpus):
        done = CliRunner().invoke(main, ["estimate", make().path, "--json", *gpus])
        return [row["total"] for row in json.loads(done.output)["cache_modes"]]

    assert sums("--gpu", "1", "--gpu", "1") == sums("--gpu", "1") == sums("--gpu", "24")


def test_a_model_that_is_served_is_measured(make):
    [footprint], lengths = check_loadable(make())
    trellis, signs = 8 * 8 * 64 * 2, 2 * 128 * 2
    embeddings = 2048 * 128 * 2  # as the head, and in the graphs
    assert footprint.weights == 7 * (trellis + signs) + 128 * 2 + 2 * embeddings
    assert lengths.max_seq_len == 1024


LLAMA, OLMO = ({"architectures": [name]} for name in ("LlamaForCausalLM", "Olmo3ForCausalLM"))
GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4}}


@pytest.mark.parametrize(
    ("backend", "model", "expected"),
    [
        ("auto", LLAMA, True),
        ("auto", {**LLAMA, **FLOAT}, False),
        ("auto", {**OLMO, **FLOAT}, True),
        ("exl2", {**LLAMA, **FLOAT}, False),
        ("exl2", LLAMA, "backend exl2 can't read EXL3 weights"),
        ("exl2", {**OLMO, **FLOAT}, "backend exl2 can't read Olmo3ForCausalLM"),
        ("exl3", LLAMA, True),
        ("exl3", {**LLAMA, **FLOAT}, True),
        ("exl3", {**LLAMA, **GPTQ}, "backend exl3 can't read GPTQ weights"),
        ("exl3", {"architectures": ["GPT2LMHeadModel"], **FLOAT}, "is unknown to ExLlamaV3"),
    ],
)
def test_the_backend_reads_the_model_or_is_the_given_one(make, backend, model, expected):
    config = replace(make(**model), backend=backend)
    if isinstance(expected, bool):
        [footprint], _ = check_loadable(config)
        assert footprint.is_whole is expected
    else:
        with pytest.raises(ModelError, match=expected):
            check_loadable(config)


def test_a_model_that_exl3_alone_reads_is_planned_before_its_download(make):
    path = make(**OLMO, **FLOAT).path
    done = CliRunner().invoke(main, ["estimate", path, "--bits", "4", "--gpu", "24GB"])
    assert done.exit_code == 0 and done.output.startswith("Olmo3ForCausalLM, 4 bits per weight")


def test_it_needs_a_gpu(make):
    with pytest.raises(ModelError, match="the weights are quantized"):
        check_loadable(replace(make(), device="cpu"))
    with pytest.raises(ModelError, match="EXL3 models need a CUDA device"):
        make_backend(replace(make(), device="cpu"))
    with pytest.raises(ModelError, match="backend exl3 needs a GPU"):
        refuse_gpu_settings(ModelConfig(DEMO, "m", "cpu", backend="exl3"))


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """A machine with exllamav3 of that version, and a file or folder as its extension."""

    def installed(version=exl3.EXLLAMAV3_VERSION, file=None):
        versions = {"exllamav3": version, "torch": "2.8.0+cu128"}
        monkeypatch.setattr(exl3.importlib.metadata, "version", versions.__getitem__)
        monkeypatch.delitem(sys.modules, exl3.EXTENSION, raising=False)
        monkeypatch.setitem(sys.modules, "triton", types.ModuleType("triton"))
        if file is not None:
            (tmp_path / file).mkdir() if file == exl3.EXTENSION else (tmp_path / file).touch()
        monkeypatch.syspath_prepend(tmp_path)

    return installed


COMPILED = exl3.EXTENSION + importlib.machinery.EXTENSION_SUFFIXES[0]


@pytest.mark.parametrize("file", [None, exl3.EXTENSION, f"{exl3.EXTENSION}.py"])
def test_what_is_not_compiled_is_not_compiled_while_clients_wait(installed, file):
    installed(file=file)
    with pytest.raises(ModelError, match="no compiled extension"):
        exl3.install()
    assert exl3.EXTENSION not in sys.modules


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("1.6.4", "EXL3 needs exllamav3 1.6.5, not 1.6.4"),
        (
            "1.6.5+cu132.torch2.11.0",
            r"1.6.5\+cu132.torch2.11.0 was not built for torch 2.8.0\+cu128",
        ),
        ("1.6.5", r"can't be loaded \(.*too short\)"),
        ("1.6.5+cu128.torch2.8.0", r"can't be loaded \(.*too short\)"),
    ],
)
def test_an_extension_for_another_torch_is_refused_with_the_wheel_to_take(installed, version, says):
    installed(version, COMPILED)
    with pytest.raises(ModelError, match=says) as refused:
        exl3.install()
    assert "\n" not in str(refused.value)
    if version != "1.6.4":
        assert f"install torch 2.11.0 and the wheel {exl3.WHEEL} together" in str(refused.value)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (0, 0)])
def test_a_gpu_that_its_kernels_do_not_run_on_is_named(installed, monkeypatch, capability):
    installed(file=COMPILED)
    old = Gpu("An old one", capability, GIB, GIB, "570.1")
    monkeypatch.setattr(gpus, "visible", lambda: [Gpu("One", (9, 0), GIB, GIB, "570.1"), old])
    exl3.check_machine(ModelConfig("m", "m", "cuda", gpus=(0,)))
    if capability != (7, 5):
        return exl3.check_machine(ModelConfig("m", "m", "cuda"))
    with pytest.raises(ModelError, match=r"8.0 or above, but GPU 1, An old one, has 7.5"):
        exl3.check_machine(ModelConfig("m", "m", "cuda"))
