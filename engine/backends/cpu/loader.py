"""Model and cache without a GPU. Import after `install()`."""

from exllamav2 import ExLlamaV2Config

from engine.backends.cpu.cache import CpuCache
from engine.backends.cpu.llama import CpuLlama
from engine.backends.cpu.weights import Progress
from engine.backends.loaded import Loaded
from engine.config import ModelConfig


def load(config: ModelConfig, exl2_config: ExLlamaV2Config, progress: Progress) -> Loaded:
    """The model and its float32 cache. Raises ModelError."""
    assert config.cache_tokens != "auto", "make_backend refuses it"
    model = CpuLlama(exl2_config)
    model.load(progress)
    return Loaded(model, CpuCache(model, max_seq_len=config.cache_tokens), "float32")
