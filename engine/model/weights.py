"""Detects the format of a model's weights from file names and first bytes, and reports why a format
can't be read.
"""

import re
from pathlib import Path
from typing import Any

from switchyard.engine.errors import ModelError

READS = "This server reads EXL2, EXL3, 4-bit GPTQ and float16, in .safetensors files"
INSTEAD = "use the model in one of these formats, or quantize the original"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)  # owner/model
LFS_POINTER = b"version https://git-lfs.github.com/spec/"

# By config.json's quant_method: the format's name, and its author.
FORMATS = {
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes' format",
    "compressed-tensors": "compressed-tensors, llm-compressor's format",
    "fbgemm_fp8": "FP8",
    "fp8": "FP8",
    "gguf": "GGUF, llama.cpp's format",
    "modelopt": "ModelOpt's FP8 or FP4",
    "mxfp4": "MXFP4",
}
# Files of weights in formats other than .safetensors.
OTHER_FILES = {
    "*.gguf": FORMATS["gguf"],
    "*.ggml": "GGML, llama.cpp's old format",
    "*.bin": "PyTorch's format: convert it with safetensors.torch.save_file",
    "*.pth": "PyTorch's format: convert it with safetensors.torch.save_file",
    "*.npz": "MLX's format",
}


def check_files(root: Path) -> None:
    """Raises ModelError if there are no readable weights."""
    if not root.is_dir():
        raise _no_directory(root)
    if not (root / "config.json").exists() and (inside := _models_in(root)):
        raise ModelError(
            f"{root} is not a model, but a folder of models: choose one, such as {inside[0]}"
        )
    files = sorted(root.glob("*.safetensors"))
    for pattern, name in OTHER_FILES.items():
        if not files and any(root.glob(pattern)):
            raise _refusal(root, name)
    for file in (*files, root / "tokenizer.json"):
        if file.is_file() and _begins(file, LFS_POINTER):
            raise ModelError(
                f"{file} is a Git LFS pointer, not the file itself: fetch the file with"
                " `git lfs pull`"
            )


def check_format(root: Path, model_config: dict[str, Any]) -> None:
    """Checks the format that config.json specifies. Raises ModelError."""
    told = model_config.get("quantization_config")
    quantization = told if isinstance(told, dict) else {}
    method = quantization.get("quant_method")
    if method is None and "_load_in_4bit" in quantization:
        method = "bitsandbytes"
    if method is None and not quantization and isinstance(model_config.get("quantization"), dict):
        raise _refusal(root, "MLX's format")  # where MLX puts groups and bits
    if method not in (None, "exl2", "exl3", "gptq"):
        raise _refusal(root, FORMATS.get(method, f"{method}, according to config.json"))
    if method == "gptq" and quantization.get("bits") != 4:
        raise _refusal(root, f"GPTQ of {quantization.get('bits')} bits, read as 4")
    if str(quantization.get("checkpoint_format", "")).startswith("marlin"):
        raise _refusal(root, "GPTQ in Marlin's order")


def _no_directory(path: Path) -> ModelError:
    """Returns the error for a path that is not a directory, with a remedy."""
    if path.is_file():
        if path.suffix == ".gguf":
            return _refusal(path, FORMATS["gguf"])
        return ModelError(
            f"{path} is a file: give the directory that contains all of the model's files"
        )
    if HUB_NAME.fullmatch(str(path)):
        return ModelError(
            f"model directory {path} does not exist. Is it a name on Hugging Face? This server"
            f" downloads nothing: run `hf download {path} --local-dir DIRECTORY`, and use DIRECTORY"
        )
    return ModelError(f"model directory {path} does not exist")


def _models_in(root: Path) -> list[Path]:
    """The model directories one or two levels below `root`, as in Hugging Face's cache and in
    collections.
    """
    found = (*root.glob("*/config.json"), *root.glob("*/*/config.json"))
    return sorted(file.parent for file in found)


def _refusal(path: Path, name: str) -> ModelError:
    return ModelError(f"the weights of {path} are in {name}. {READS}: {INSTEAD}")


def _begins(path: Path, start: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(start)) == start
