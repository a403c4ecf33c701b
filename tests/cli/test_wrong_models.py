"""What is no model that could be served: what it is and what to do, in the loader's words. By a
process that imports no torch.
"""

import json
import shutil

import pytest

from switchyard import engine
from tests.conftest import run_code

READS = (
    "This server reads EXL2, EXL3, 4-bit GPTQ and float16, in .safetensors files: use the model"
    " in one"
)
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 19\n"

# Of each: what is changed in a copy of a good model, and what is said.
QUANTIZED = {
    "AWQ": ({"quant_method": "awq", "bits": 4}, "AWQ"),
    "FP8": ({"quant_method": "fp8"}, "FP8"),
    "bitsandbytes": ({"quant_method": "bitsandbytes"}, "bitsandbytes' format"),
    "compressed-tensors": ({"quant_method": "compressed-tensors"}, "compressed-tensors"),
    "GPTQ of 8 bits": ({"quant_method": "gptq", "bits": 8}, "GPTQ of 8 bits"),
}
WRONG = {
    **{name: (f"in {said}", READS) for name, (_, said) in QUANTIZED.items()},
    "MLX": ("in MLX's format", READS),
    "GGUF file": ("in GGUF, llama.cpp's format", READS),
    "directory with GGUF": ("in GGUF, llama.cpp's format", READS),
    "PyTorch's files": ("in PyTorch's format", "convert it with safetensors.torch.save_file"),
    "pointer of Git LFS": ("is a Git LFS pointer, not the file", "`git lfs pull`"),
    "name on Hugging Face": (
        "Is it a name on Hugging Face?",
        "hf download owner/model --local-dir",
    ),
    "directory of models": ("is not a model, but a folder of models", "choose one, such as"),
    "file": ("config.json is a file", "give the directory that contains all of the model's files"),
    "nothing": ("does not exist", ""),
    "unknown architecture": (
        "doesn't know the architecture MambaForCausalLM",
        "serve one of these",
    ),
    "no config.json": ("has no config.json", "copy it from the original model"),
    "no tokenizer.json": ("has no tokenizer.json", "copy it from the original model"),
    "cut off": ("is cut off", "download it again"),
    "a file missing": ("lack weights of layer 2 (there are 9", "is a file missing?"),
}
CODE = """
import json, sys
from click.testing import CliRunner
from switchyard.cli import main

told = {}
for name, path in json.loads(sys.argv[1]).items():
    estimate = CliRunner().invoke(main, ["estimate", path, "--json"])
    check = CliRunner().invoke(main, ["check", path, "--bind", "127.0.0.1:0", "--json"])
    told[name] = {
        "estimate": (estimate.exit_code, json.loads(estimate.stdout)["error"]),
        "check": (check.exit_code, {one["what"]: one for one in json.loads(check.stdout)}["model"]),
        "imported": sorted({"torch", "exllamav2", "numpy"} & sys.modules.keys()),
    }
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def paths(model_path, tmp_path_factory):
    root = tmp_path_factory.mktemp("wrong")
    made = {name: root / name.replace(" ", "-") for name in WRONG}

    def copy(name, gone=None, **changes):
        path = shutil.copytree(model_path, made[name])
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | changes))
        if gone is not None:
            (path / gone).unlink()
        return path

    for name, (quantization, _) in QUANTIZED.items():
        copy(name, quantization_config=quantization)
    copy("MLX", quantization={"group_size": 64, "bits": 4})
    made["GGUF file"] = root / "model-Q4_K_M.gguf"
    made["GGUF file"].write_bytes(b"GGUF")
    (copy("directory with GGUF", "model.safetensors") / "model-Q4_K_M.gguf").write_bytes(b"GGUF")
    (copy("PyTorch's files", "model.safetensors") / "pytorch_model.bin").write_bytes(b"PK")
    (copy("pointer of Git LFS") / "model.safetensors").write_text(POINTER)
    made["name on Hugging Face"] = "owner/model"
    shutil.copytree(model_path, made["directory of models"] / "one")
    made["file"] = copy("file") / "config.json"
    copy("unknown architecture", architectures=["MambaForCausalLM"])
    copy("no config.json", "config.json")
    copy("no tokenizer.json", "tokenizer.json")
    weights = copy("cut off") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    copy("a file missing", num_hidden_layers=9)
    return {name: str(path) for name, path in made.items()}


@pytest.fixture(scope="module")
def told(paths):
    """What the commands say of all, in one process."""
    return json.loads(run_code(CODE, json.dumps(paths)))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_model_is_told_what_it_is_and_what_to_do(told, name):
    (status, said), (check_status, finding) = told[name]["estimate"], told[name]["check"]
    assert (status, check_status, finding["is_good"]) == (3, 1, False)
    assert finding["message"].endswith(f": {said}") and "\n" not in said
    for part in WRONG[name]:
        assert part in said
    assert told[name]["imported"] == []


@pytest.mark.parametrize("name", sorted(WRONG.keys() - {"cut off", "a file missing"}))
def test_the_loader_says_the_same(told, paths, name):
    with pytest.raises(engine.ModelError) as refusal:
        engine.ModelDir.read(paths[name])
    assert str(refusal.value) == told[name]["estimate"][1]
