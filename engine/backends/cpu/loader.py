"""Model and cache without a GPU. Import after `install()`."""

from typing import Any

from exllamav2 import ExLlamaV2Config

from engine.backends.cpu.cache import CpuCache
from engine.backends.cpu.llama import CpuLlama


def load(config: ExLlamaV2Config, cache_tokens: int) -> tuple[Any, Any]:
    """The model and its float32 cache. Raises ModelError."""
    model = CpuLlama(config)
    model.load()
    return model, CpuCache(model, max_seq_len=cache_tokens)
