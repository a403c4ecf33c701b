"""Backends that an engine thread drives. All slow imports happen in `make_backend`."""

import warnings
from collections.abc import Callable
from dataclasses import fields
from typing import Literal

from switchyard.engine.backends.base import Backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.memory.gpus import gpus, has_gpu, is_for_cpu
from switchyard.engine.memory.lengths import EXL3_CHUNK_SIZE
from switchyard.engine.model.exl3 import check_exl3_settings, is_by_exl3
from switchyard.engine.model.model_dir import read_config

GPU_SETTINGS = (
    *("cache_mode", "gpu_reserve", "gpu_split", "tensor_parallel"),
    *("loras", "rope_alpha", "rope_scale", "unpacked_weights", "products"),
)


def make_backend(
    config: ModelConfig,
    grammars: Grammars | None = None,
    tell_progress: Callable[[float], None] | None = None,
) -> Backend:
    """Returns the backend for the device that `config` names. Called on the engine thread, because
    importing torch and exllamav2 takes seconds. `grammars`: the model's grammars, if it has any.
    `tell_progress` is called with the progress of loading, from 0 to 1. Raises ModelError.
    """
    device = _device(config)
    if is_by_exl3(config, read_config(config.path)):
        return _make_exl3(config, device, grammars, tell_progress)
    if device == "cpu":
        from switchyard.engine.backends.exl2 import cpu

        refuse_gpu_settings(config)
        cpu.install()  # before exllamav2 is imported
        from switchyard.engine.backends.exl2.cpu.loader import load
    else:
        from switchyard.engine.backends.exl2.cuda.loader import load
    from switchyard.engine.backends.exl2.backend import Exl2Backend

    return Exl2Backend(config, device, load, grammars, tell_progress)


def _make_exl3(
    config: ModelConfig,
    device: Literal["cuda", "cpu"],
    grammars: Grammars | None,
    tell_progress: Callable[[float], None] | None,
) -> Backend:
    check_exl3_settings(config)
    if device == "cpu":
        raise ModelError("EXL3 models need a CUDA device: the CPU backend can't serve them")
    from switchyard.engine.backends import exl3

    exl3.check_machine(config)
    exl3.install()  # before exllamav2 or exllamav3 is imported
    from switchyard.engine.backends.exl2.backend import Exl2Backend
    from switchyard.engine.backends.exl3.config import read_config as read
    from switchyard.engine.backends.exl3.loader import load

    return Exl2Backend(config, device, load, grammars, tell_progress, read, EXL3_CHUNK_SIZE)


def _device(config: ModelConfig) -> Literal["cuda", "cpu"]:
    """Raises ModelError if there is a GPU that torch can't use. Otherwise the model would silently
    run on the CPU, a hundred times slower.
    """
    import torch

    if is_for_cpu(config.device):
        # torch with CUDA warns if it finds no driver.
        warnings.filterwarnings("ignore", "CUDA initialization", UserWarning)
    if config.device == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if is_for_cpu(config.device):
        return "cpu"
    found = [gpu for gpu in gpus()[:1] if has_gpu()]
    if not found:
        raise ModelError("device 'cuda': torch finds no CUDA device")
    cause = f"the driver, {found[0].driver}, may be too old for torch's CUDA {torch.version.cuda}"
    if torch.version.cuda is None:
        cause = (
            "it was built without CUDA, and docs/deployment.md says how to install another build"
        )
    raise ModelError(
        f"there is a GPU, {found[0].name}, that torch {torch.__version__} can't use: {cause}."
        " To serve without it, set `device` to `cpu`"
    )


def refuse_gpu_settings(config: ModelConfig) -> None:
    """Raises ModelError for settings that the CPU backend would ignore. `off` is accepted, because
    this backend never copies weights.
    """
    for field in fields(config):
        given = getattr(config, field.name)
        if field.name in GPU_SETTINGS and given not in (field.default, "off"):
            raise ModelError(f"{field.name} needs a GPU, but the device is cpu", field.name)
    if config.backend == "exl3":
        raise ModelError("backend exl3 needs a GPU, but the device is cpu", "backend")
    if config.cache_tokens == "auto":
        raise ModelError("cache_tokens auto needs a GPU, but the device is cpu", "cache_tokens")
