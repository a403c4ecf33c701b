"""What an engine thread may drive. Nothing heavy is imported before `make_backend` is called."""

from collections.abc import Callable
from dataclasses import fields

from switchyard.engine.backends.base import Backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.grammar.grammars import Grammars

GPU_SETTINGS = (
    *("cache_mode", "gpu_reserve", "gpu_split", "tensor_parallel"),
    *("loras", "rope_alpha", "rope_scale"),
)


def make_backend(
    config: ModelConfig,
    grammars: Grammars | None = None,
    tell_progress: Callable[[float], None] | None = None,
) -> Backend:
    """The backend for the device that `config` asks for. Called on the engine thread: it imports
    torch and exllamav2, which takes seconds. `grammars`: the model's, if there are any already.
    `tell_progress` is called with the share of the model that is loaded. Raises ModelError.
    """
    import torch

    device = config.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("device 'cuda': torch finds no CUDA device")
    if device == "cpu":
        from switchyard.engine.backends.exl2 import cpu

        _refuse_gpu_settings(config)
        cpu.install()  # before exllamav2 is imported
        from switchyard.engine.backends.exl2.cpu.loader import load
    else:
        from switchyard.engine.backends.exl2.cuda.loader import load
    from switchyard.engine.backends.exl2.backend import Exl2Backend

    return Exl2Backend(config, device, load, grammars, tell_progress)


def _refuse_gpu_settings(config: ModelConfig) -> None:
    """What the CPU backend would have to ignore."""
    for field in fields(config):
        if field.name in GPU_SETTINGS and getattr(config, field.name) != field.default:
            raise ModelError(f"{field.name} is for GPUs, and the device is cpu", field.name)
    if config.cache_tokens == "auto":
        raise ModelError("cache_tokens auto is for GPUs, and the device is cpu", "cache_tokens")
