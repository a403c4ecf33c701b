"""Model and cache on GPUs, as far as there is room. Engine thread."""

import gc
import logging
from collections.abc import Callable
from typing import Any

import torch
from exllamav2 import (
    ExLlamaV2,
    ExLlamaV2Cache,
    ExLlamaV2Cache_Q4,
    ExLlamaV2Cache_Q6,
    ExLlamaV2Cache_Q8,
    ExLlamaV2Config,
)
from exllamav2.attn import ExLlamaV2Attention
from exllamav2.parallel_decoder import ExLlamaV2ParallelDecoder

from engine.backends.cuda.memory import GIB, Footprint, Memory
from engine.backends.cuda.passes import Passes, can_capture
from engine.backends.faults import explain
from engine.backends.loaded import Loaded
from engine.config import MIN_GPU_RESERVE, PAGE_SIZE, CacheMode, ModelConfig
from engine.errors import ModelError, OutOfMemory

logger = logging.getLogger(__name__)

CACHES: dict[CacheMode, Any] = {
    "float16": ExLlamaV2Cache,
    "Q8": ExLlamaV2Cache_Q8,
    "Q6": ExLlamaV2Cache_Q6,
    "Q4": ExLlamaV2Cache_Q4,
}


def load(
    config: ModelConfig, exl2_config: ExLlamaV2Config, progress: Callable[[int, int], None]
) -> Loaded:
    """With the first cache that has room. Raises ModelError if none has."""
    _check_split(config)
    footprint = measure(ExLlamaV2(exl2_config))
    memory = Memory(config, [footprint], free_memory(), exl2_config.max_seq_len)
    caches = memory.caches()
    for mode, tokens in caches:
        try:
            loaded = _load(config, exl2_config, mode, tokens, progress)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
        else:
            size = footprint.weights + footprint.cache(mode, tokens)
            logger.info("%s cache of %d tokens, %.1f GiB in all", mode, tokens, size / GIB)
            if mode != config.cache_mode[0]:
                logger.warning("no room for a %s cache: it is %s", config.cache_mode[0], mode)
            return loaded
        # Not in the handler: the frames there hold the GPUs' memory.
        gc.collect()
        torch.cuda.empty_cache()
        logger.warning("there was no room for a %s cache after all", mode)
    raise ModelError(
        "the GPUs had less memory than it seemed: raise gpu_reserve, or lower cache_tokens",
        "gpu_reserve",
    )


def free_memory() -> list[int]:
    """Bytes, of each GPU."""
    return [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]


def measure(model: ExLlamaV2) -> Footprint:
    """Of a model that need not be loaded."""
    config, modules = model.config, model.modules[1:]  # the embedding stays in the host's memory
    num_rows = config.max_input_len * config.max_batch_size
    kv_size = config.num_key_value_heads * config.head_dim
    query_size = config.num_attention_heads * config.head_dim
    rotary = 2 * 2 * config.max_seq_len * config.head_dim
    activations = 2 * num_rows * (4 * config.hidden_size + query_size + 2 * kv_size)
    logits = 2 * config.max_input_len * config.vocab_size
    attention = (ExLlamaV2Attention, ExLlamaV2ParallelDecoder)
    return Footprint(
        modules=tuple((m.weight_footprint(), isinstance(m, attention)) for m in modules),
        fixed=max(m.scratch_space_fixed() for m in modules)
        + rotary * (2 if config.rotary_embedding_base_alt else 1)
        + activations
        + logits,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
    )


def _check_split(config: ModelConfig) -> None:
    num_gpus = torch.cuda.device_count()
    if len(config.gpu_split) > num_gpus:
        raise ModelError(
            f"gpu_split names {len(config.gpu_split)} GPUs, there are {num_gpus}", "gpu_split"
        )


def _load(
    config: ModelConfig,
    exl2_config: ExLlamaV2Config,
    mode: CacheMode,
    tokens: int,
    progress: Callable[[int, int], None],
) -> Loaded:
    exl2_config.no_graphs = mode == "float16"  # of single layers: they can't be part of our own
    model = ExLlamaV2(exl2_config)
    if config.gpu_split:
        model.load(list(config.gpu_split), callback=progress)
        cache = CACHES[mode](model, max_seq_len=tokens)
    else:
        cache = CACHES[mode](model, max_seq_len=tokens, lazy=True)
        reserve = int((config.gpu_reserve - MIN_GPU_RESERVE) * GIB)
        model.load_autosplit(cache, reserve_vram=reserve, callback=progress)
    passes = (
        Passes(model, cache, PAGE_SIZE, config.max_batch_size)
        if can_capture(model, cache)
        else None
    )
    return Loaded(model, cache, mode, passes)


def _is_out_of_memory(error: Exception) -> bool:
    # What ExLlamaV2's two ways of splitting say, and torch.
    told = ("Insufficient VRAM", "Insufficient space in device allocation")
    return isinstance(explain(error), OutOfMemory) or any(text in str(error) for text in told)
