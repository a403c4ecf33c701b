"""Model and cache on GPUs, as ExLlamaV2 loads them."""

from typing import Any

from exllamav2 import ExLlamaV2, ExLlamaV2Cache, ExLlamaV2Config


def load(config: ExLlamaV2Config, cache_tokens: int) -> tuple[Any, Any]:
    """The model, split over all GPUs as they have room, and its float16 cache."""
    model = ExLlamaV2(config)
    cache = ExLlamaV2Cache(model, max_seq_len=cache_tokens, lazy=True)
    model.load_autosplit(cache)
    return model, cache
