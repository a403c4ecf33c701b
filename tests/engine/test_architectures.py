"""Models that ExLlamaV2 can't read, or would read wrongly: refused by config.json alone."""

import pathlib
import re
import shutil

import pytest

from switchyard import engine
from switchyard.engine.backends.exl2 import cpu
from switchyard.engine.model.architectures import ACTIVATIONS, PIXTRAL, text_config
from switchyard.engine.model.model_dir import ModelDir
from tests.conftest import run_code
from tests.hostile import edit

UNKNOWN = [
    *("PhiForCausalLM", "GPTNeoXForCausalLM", "NemotronForCausalLM"),
    *("Olmo2ForCausalLM", "Llama4ForCausalLM", "MambaForCausalLM"),
    *("FalconForCausalLM", "BloomForCausalLM", "MPTForCausalLM", "T5ForConditionalGeneration"),
    *("Qwen2MoeForCausalLM", "LlavaForConditionalGeneration"),
]
MOE = {"norm_topk_prob": True}


@pytest.fixture
def read(model_path, directory):
    """Reads the small model's directory after changes of its config.json."""

    def read(**changes):
        shutil.copy(f"{model_path}/config.json", directory)
        edit(directory / "config.json", **changes)
        return ModelDir.read(str(directory))

    return read


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_architecture_is_refused_by_its_name(read, name):
    message = f"doesn't know the architecture {name}.*It knows .*LlamaForCausalLM"
    with pytest.raises(engine.ModelError, match=message):
        read(architectures=[name], vision_config={"model_type": "clip_vision_model"})


def test_the_refusal_needs_no_torch(directory):
    (directory / "config.json").write_text('{"architectures": ["OtherForCausalLM"]}')
    run_code(
        "import sys\n"
        "from switchyard import engine\n"
        "try:\n"
        f"    engine.ModelDir.read({str(directory)!r})\n"
        "except engine.ModelError as error:\n"
        "    assert 'OtherForCausalLM' in str(error), error\n"
        "else:\n"
        "    raise SystemExit('was taken')\n"
        "assert not {'torch', 'exllamav2'} & set(sys.modules)"
    )


@pytest.mark.parametrize("names", [["LlamaForCausalLM", "MistralForCausalLM"], "Llama", [3]])
def test_one_architecture_is_named(read, names):
    with pytest.raises(engine.ModelError, match="architectures must name one"):
        read(architectures=names)


def test_the_known_architectures_are_the_librarys():
    cpu.install()
    from exllamav2 import architecture

    source = pathlib.Path(architecture.__file__).read_text()
    compared = re.findall(r"arch_string (?:==|in|!=) (\[.*?\]|\".*?\")", source)
    assert {name for part in compared for name in re.findall(r"\w+", part)} == set(ACTIVATIONS)
    for name, activations in ACTIVATIONS.items():
        vision = {"model_type": "pixtral" if name in PIXTRAL else "other"}
        found = architecture.ExLlamaV2ArchParams(name, {"vision_config": vision})
        assert found.arch_string == name
        assert found.lm.mlp_act_func == activations[0].partition("_")[0]


DBRX, GPT2, CODE = "DbrxForCausalLM", "GPT2LMHeadModel", "GPTBigCodeForCausalLM"
STARCODER, QWEN, GEMMA = "Starcoder2ForCausalLM", "Qwen3MoeForCausalLM", "Gemma2ForCausalLM"
GEMMA3, LLAMA = "Gemma3ForConditionalGeneration", "LlamaForCausalLM"
INVERSE, BOTH = "scale_attn_by_inverse_layer_idx", {"use_bidirectional_attention": True}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act of gelu.*computes silu"),
        (LLAMA, {"hidden_act": "relu2"}, "hidden_act of relu2"),
        (STARCODER, {"hidden_act": "gelu"}, "hidden_act of gelu"),
        (GEMMA, {"hidden_activation": "silu"}, "hidden_activation of silu"),
        (GPT2, {"activation_function": "relu"}, "activation_function of relu"),
        (DBRX, {"attn_config": {"clip_qkv": 8}}, r"attn_config\.clip_qkv of 8"),
        (DBRX, {"ffn_config": {"ffn_act_fn": {"name": "gelu"}}}, r"ffn_act_fn\.name of gelu"),
        (DBRX, {"ffn_config": {"moe_normalize_expert_weights": 2}}, r"ffn_config\.moe.*s of 2"),
        (QWEN, {"norm_topk_prob": False}, "norm_topk_prob of False"),
        (QWEN, {}, "norm_topk_prob of False"),  # what transformers takes it for
        (QWEN, {**MOE, "decoder_sparse_step": 2}, "decoder_sparse_step of 2"),
        (QWEN, {**MOE, "mlp_only_layers": [1]}, r"mlp_only_layers of \[1\]"),
        (CODE, {"multi_query": False}, "multi_query of False"),
        *((name, {"scale_attn_weights": False}, "attn_weights of False") for name in (CODE, GPT2)),
        (GPT2, {INVERSE: True}, f"{INVERSE} of True"),
        (GEMMA, BOTH, "attention of True"),
        (GEMMA3, {"text_config": BOTH}, "attention of True"),
        (STARCODER, {"use_bias": False}, "use_bias of False"),
        (STARCODER, {"norm_type": "rms_norm"}, "norm_type of rms_norm"),
        (STARCODER, {"mlp_type": "gated"}, "mlp_type of gated"),
    ],
    ids=str,
)
def test_a_variant_that_is_not_computed_is_refused_by_name(read, name, changes, message):
    plain = {"hidden_act": "gelu_pytorch_tanh" if "gelu_new" in ACTIVATIONS[name] else "silu"}
    with pytest.raises(engine.ModelError, match=message):
        read(**{"architectures": [name], **plain, **changes})


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Qwen3MoeForCausalLM", {"norm_topk_prob": True, "mlp_only_layers": []}),
        ("GemmaForCausalLM", {"hidden_act": "gelu"}),
        ("GPT2LMHeadModel", {"activation_function": "gelu_new"}),
        ("DbrxForCausalLM", {"attn_config": {"clip_qkv": None}, "ffn_config": {}}),
        ("LlavaForConditionalGeneration", {"vision_config": {"model_type": "pixtral"}}),
        ("MistralForCausalLM", {}),
        ("Qwen2ForCausalLM", {"hidden_act": "swish"}),
        ("Starcoder2ForCausalLM", {"hidden_act": "gelu_fast"}),
        ("Gemma3ForConditionalGeneration", {"hidden_activation": "gelu_pytorch_tanh"}),
        ("GPT2LMHeadModel", {"scale_attn_weights": True, "activation_function": None}),
    ],
    ids=str,
)
def test_what_is_computed_is_let_through(read, name, changes):
    plain = {"hidden_act": None}
    read(**{"architectures": [name], **plain, **changes})


LINEAR, PART = {"rope_type": "linear", "factor": 2.0}, "partial_rotary_factor"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"type": "proportional"}}, "is proportional.*it knows default"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn .* needs original_max_position"),
        ({"rope_scaling": {"type": "linear"}}, "linear rotary embedding needs factor"),
        ({"rope_scaling": {**LINEAR, "type": "linear"}}, "both type and rope_type"),
        ({"rope_parameters": {"full_attention": {}, "sliding_attention": {}}}, "kind of layer"),
        ({"rope_parameters": {"rope_theta": 5.0, PART: 0.5}}, f"{PART} only in its rope_param"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unknown_rotary_embedding_is_refused_by_name(read, changes, message):
    with pytest.raises(engine.ModelError, match=message):
        read(**changes)


ORIGINAL = {"original_max_position_embeddings": 1024}
ROPES = {
    "dynamic": {"factor": 2.0},
    "linear": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **ORIGINAL},
    "longrope": {"short_factor": [1.0], "long_factor": [1.0], **ORIGINAL},
    "yarn": {"factor": 4.0, **ORIGINAL},
}


@pytest.mark.parametrize(
    ("kind", "missing"), [(kind, name) for kind, settings in ROPES.items() for name in settings]
)
def test_each_setting_that_a_rotary_embedding_needs_is_named(read, kind, missing):
    settings = {"rope_type": kind, **ROPES[kind]}
    assert read(rope_parameters=settings)
    del settings[missing]
    with pytest.raises(engine.ModelError, match=f"a {kind} rotary embedding needs {missing}$"):
        read(rope_parameters=settings)


GPTQ = {"quant_method": "gptq", "bits": 4}


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_method": "awq", "bits": 4}, "AWQ"),
        ({"quant_method": "fp8"}, "FP8"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"_load_in_4bit": True}, "bitsandbytes"),
        ({"quant_method": "gguf"}, "GGUF"),
        ({"quant_method": "compressed-tensors"}, "llm-compressor's"),
        ({"quant_method": "fbgemm_fp8"}, "in FP8"),
        ({"quant_method": "modelopt"}, "ModelOpt's"),
        ({"quant_method": "mxfp4"}, "in MXFP4"),
        ({"quant_method": "new"}, "new, according to config.json"),
        ({**GPTQ, "bits": 8}, "GPTQ of 8 bits"),
        *(({**GPTQ, "checkpoint_format": name}, "Marlin") for name in ("marlin", "marlin_24")),
        ({"group_size": 64, "bits": 4}, "MLX's format"),
    ],
    ids=str,
)
def test_a_format_of_others_is_refused_with_what_to_do(read, quantization, message):
    name = "quantization" if "MLX" in message else "quantization_config"
    what_to_do = "This server reads EXL2, EXL3, .*.*use the model"
    with pytest.raises(engine.ModelError, match=f"{message}.*{what_to_do}"):
        read(**{name: quantization})


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("model-Q4_K_M.gguf", "GGUF, llama.cpp's format"),
        ("pytorch_model-00001-of-00002.bin", "PyTorch's format: convert it"),
        ("consolidated.00.pth", "PyTorch's format: convert it"),
        ("model.ggml", "GGML, llama.cpp's old format"),
        ("weights.00.npz", "MLX's format"),
    ],
)
def test_files_of_another_format_are_named(directory, file, message):
    (directory / "model.safetensors").rename(directory / file)
    with pytest.raises(engine.ModelError, match=f"{message}.*This server reads EXL2, EXL3, .*"):
        ModelDir.read(str(directory))


def test_a_file_in_place_of_a_directory_is_named(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(engine.ModelError, match="GGUF"):
        ModelDir.read(str(tmp_path / "model.gguf"))


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_named_with_what_to_do(directory, name):
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 19\n"
    (directory / name).write_text(pointer)
    with pytest.raises(engine.ModelError, match=f"{name} is a Git LFS pointer.*git lfs pull"):
        ModelDir.read(str(directory))


def test_files_of_another_format_beside_the_weights_are_left_alone(directory):
    for name in ("pytorch_model.bin", "consolidated.pth", "model-Q4_K_M.gguf"):
        (directory / name).write_bytes(b"PK")
    assert ModelDir.read(str(directory))


def test_models_in_a_directory_are_found_beside_each_other_and_a_level_below(model_path, tmp_path):
    """As collections have them, and a hub's cache: by owner and name."""
    for name in ("one", "owner/two"):
        shutil.copytree(model_path, tmp_path / name)
    with pytest.raises(engine.ModelError, match=f"a folder of models.* such as {tmp_path}/one"):
        ModelDir.read(str(tmp_path))


@pytest.mark.parametrize(
    ("path", "is_name"),
    [("owner/model-4.0bpw_x", True), ("a/b/c", False), ("no-such-model", False)],
)
def test_only_what_may_be_a_name_on_hugging_face_is_told_as_one(path, is_name):
    with pytest.raises(engine.ModelError, match=f"model directory {path} does not exist") as told:
        ModelDir.read(path)
    assert (f"hf download {path}" in str(told.value)) == is_name


def test_of_a_vision_model_the_inner_numbers_count():
    config = {"hidden_size": 1, "tie_word_embeddings": True, "text_config": {"hidden_size": 2}}
    assert text_config(config) == {**config, "hidden_size": 2}
