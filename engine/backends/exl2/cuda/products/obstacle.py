"""Finds out, before a model is loaded, whether it must keep exllamav2's matrix products and, if so,
why.
"""

from collections.abc import Sequence
from typing import Any

import torch
from exllamav2 import ExLlamaV2Config
from exllamav2.linear import ExLlamaV2Linear
from safetensors import safe_open

from switchyard.engine.backends.exl2.cuda.products.packing import (
    CHUNK,
    TILE,
    Unsuitable,
    find_runs,
    read_groups,
)
from switchyard.engine.config import ModelConfig
from switchyard.engine.memory import unpacked
from switchyard.engine.model.model_dir import ModelDir
from switchyard.engine.model.shape import read_shape

LEAST_CAPABILITY = (8, 0)


def obstacle(config: ModelConfig, model: Any, has_passes: bool, index: int) -> str | None:
    """Returns why our products can't be used, or None if they can. `model`: exllamav2's model,
    which is not loaded yet. `has_passes`: whether the model's passes are captured. `index`: the
    index of its GPU.
    """
    if config.products == "exllamav2":
        return "chosen in the settings"
    return _of_settings(config) or _of_gpu(has_passes, index) or _of_model(config, model)


def _of_settings(config: ModelConfig) -> str | None:
    if config.tensor_parallel:
        return "tensor_parallel"
    if config.loras:
        return "it has LoRAs"
    return "tokens are guessed" if config.has_draft else None


def _of_gpu(has_passes: bool, index: int) -> str | None:
    if torch.version.hip is not None:
        return "the GPU is AMD's"
    capability = torch.cuda.get_device_capability(index)
    if capability < LEAST_CAPABILITY:
        return "the GPU's compute capability is {}.{}, under 8.0".format(*capability)
    return None if has_passes else "several GPUs, no flash-attn, or layers that aren't plain"


def _of_model(config: ModelConfig, model: Any) -> str | None:
    found = ModelDir.read(config.path).config
    reason = unpacked.obstacle(read_shape(found), found, model.config.max_seq_len)
    return reason or _of_matrices(model.config, _matrices(model))


def _of_matrices(config: ExLlamaV2Config, matrices: Sequence[ExLlamaV2Linear]) -> str | None:
    for linear in matrices:
        name = f"{linear.key}.q_groups"
        file = config.tensor_file_map.get(name)
        if file is None:
            continue  # in float16: exllamav2 computes it
        is_head = linear is matrices[-1]
        if linear.in_features % CHUNK or (linear.out_features % TILE and not is_head):
            return f"{linear.key} is {linear.in_features} by {linear.out_features}"
        with safe_open(file, "pt") as tensors:
            numbers = tensors.get_tensor(name).tolist()
            words = tensors.get_slice(f"{linear.key}.q_weight").get_shape()[0]
        try:
            find_runs(read_groups(numbers, words))
        except Unsuitable as error:
            return f"{linear.key} has {error}"
    return None


def _matrices(model: Any) -> list[ExLlamaV2Linear]:
    modules = [part for module in model.modules for part in (*module.submodules, module)]
    return [module for module in modules if isinstance(module, ExLlamaV2Linear)]
