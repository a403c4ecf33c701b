"""Checks whether this machine could load a model, from config.json and the names and sizes of
tensors, without torch.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from switchyard.engine.config import Lora, ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.memory.estimate import Footprint
from switchyard.engine.memory.gpus import is_for_cpu
from switchyard.engine.memory.lengths import Lengths
from switchyard.engine.model.footprint import measure
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.tensors import read_sizes

QUANTIZED = (".q_weight", ".qweight")  # EXL2; GPTQ and its relatives
HIDDEN = "NVIDIA's library NVML reports no GPU; if there is one, set device to cuda"
UNQUANTIZED = "only a CUDA device can serve them; the CPU backend needs the unquantized model"


def check_loadable(config: ModelConfig) -> tuple[list[Footprint], Lengths]:
    """Returns the footprints and lengths that `measure` returns. Raises ModelError."""
    measured = measure(config)
    if is_for_cpu(config.device):
        for path in (config.path, config.draft_model):
            if path is not None:
                check_for_cpu(ModelDir.read(path), config.device)
    else:
        check_loras(config)
    return measured


def check_loras(config: ModelConfig) -> None:
    """Raises ModelError for a LoRA whose files are missing."""
    for lora in config.loras:
        if len(adapter_files(lora)) < 2:
            raise ModelError(
                f"LoRA {lora.name}: {lora.path} has no adapter_config.json, or no"
                " adapter_model.safetensors or .bin",
                "loras",
            )


def adapter_files(lora: Lora) -> list[Path]:
    """The existing files of a LoRA, which contain its configuration and weights."""
    root = Path(lora.path)
    weights = [root / "adapter_model.bin", root / "adapter_model.safetensors"]  # exllamav2's order
    files = [root / "adapter_config.json", *[file for file in weights if file.is_file()][:1]]
    return [file for file in files if file.is_file()]


def check_for_cpu(model_dir: ModelDir, device: str) -> None:
    """Raises ModelError for a model that the CPU backend can't serve."""
    try:
        check_kind(model_dir.config)
        check_tensors(read_sizes(model_dir.path))
    except ModelError as error:
        if device != "auto":
            raise
        raise ModelError(f"{error}. {HIDDEN}") from None


def check_kind(model_config: dict[str, Any]) -> None:
    """Raises ModelError for a model that the CPU backend can't serve."""
    [architecture, *_] = model_config["architectures"]
    if architecture != "LlamaForCausalLM":
        raise ModelError(
            f"the CPU backend supports only LlamaForCausalLM, not {architecture}: "
            "use a CUDA device for this model"
        )
    if model_config.get("quantization_config"):
        raise ModelError(f"the weights are quantized: {UNQUANTIZED}")


def check_tensors(names: Iterable[str]) -> None:
    """Raises ModelError for tensors that a plain Llama doesn't have."""
    for name in names:
        if name.endswith(QUANTIZED):
            raise ModelError(f"the weights are quantized ({name}): {UNQUANTIZED}")
        if name.endswith(".bias"):
            raise ModelError(
                f"the model has biases ({name}): use a CUDA device, not the CPU backend"
            )
