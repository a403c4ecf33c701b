"""Loads the model and its cache on GPUs, with the first cache mode that fits. Used on the engine
thread.
"""

import gc
import logging
from collections.abc import Sequence
from typing import Any

import torch
from exllamav2 import (
    ExLlamaV2,
    ExLlamaV2Cache,
    ExLlamaV2Cache_Q4,
    ExLlamaV2Cache_Q6,
    ExLlamaV2Cache_Q8,
    ExLlamaV2Config,
    ExLlamaV2Lora,
    attn,
)

from switchyard.engine.backends.exl.faults import explain
from switchyard.engine.backends.exl.loaded import LoadedModel
from switchyard.engine.backends.exl.progress import Callback, parts
from switchyard.engine.backends.exl2.cuda import experts, tensor_parallel
from switchyard.engine.backends.exl2.cuda.captured.passes import CapturedPasses
from switchyard.engine.backends.exl2.cuda.kept import Kept, multiplying
from switchyard.engine.backends.exl2.cuda.layers import Exl2Layers
from switchyard.engine.backends.exl2.cuda.plain import can_capture, is_plain
from switchyard.engine.backends.exl2.cuda.products.compare import ProductsRefused
from switchyard.engine.backends.exl2.cuda.products.driver import Unavailable
from switchyard.engine.backends.exl2.cuda.products.kernels import Kernels
from switchyard.engine.backends.exl2.cuda.products.obstacle import obstacle
from switchyard.engine.backends.exl2.cuda.products.own import take_over
from switchyard.engine.backends.exl2.load.attention import (
    check_windows,
    set_tables,
    set_windows,
)
from switchyard.engine.backends.exl2.load.config import read_draft_config
from switchyard.engine.config import MIN_GPU_RESERVE, PAGE_SIZE, CacheMode, Lora, ModelConfig
from switchyard.engine.errors import ModelError, NoRoom, OutOfMemory
from switchyard.engine.memory.estimate import GIB, Memory
from switchyard.engine.model.footprint import measure
from switchyard.engine.model.loadable import adapter_files, check_loras

logger = logging.getLogger(__name__)

LIBRARIES = 0.25  # GiB that CUDA's libraries take at first use: part of the reserve

CACHES: dict[CacheMode, Any] = {
    "float16": ExLlamaV2Cache,
    "Q8": ExLlamaV2Cache_Q8,
    "Q6": ExLlamaV2Cache_Q6,
    "Q4": ExLlamaV2Cache_Q4,
}


def load(config: ModelConfig, exl2_config: ExLlamaV2Config, progress: Callback) -> LoadedModel:
    """Returns the model with the first cache that fits. Raises ModelError if none fits."""
    _check_gpus(config, exl2_config)
    check_loras(config)
    configs = [exl2_config]
    if config.draft_model is not None:
        configs.insert(0, read_draft_config(config, exl2_config, "cuda"))
    for one in configs:
        if config.tensor_parallel or not (has_pages(one) and attn.has_flash_attn_with_window):
            check_windows(one)
    footprints, _ = measure(config)
    adapters = sum(file.stat().st_size for lora in config.loras for file in adapter_files(lora))
    free = [size - adapters for size in free_memory()]
    memory = Memory(config, footprints, free, exl2_config.max_seq_len)
    for mode, tokens in memory.caches():
        used = [i for i, size in enumerate(memory.place(mode, tokens)) if size]
        index = used[0] if len(used) == 1 else None
        try:
            num_kept = len(memory.unpacked(mode, tokens))
            loaded = _load_checked(config, configs, mode, tokens, progress, index, num_kept)
        except Exception as error:
            if not _is_out_of_memory(error):
                raise
            logger.warning("a %s cache did not fit after all: %s", mode, error)
        else:
            size = sum(one.weights + one.cache(mode, tokens) for one in footprints)
            logger.info("%s cache of %d tokens, %.1f GiB in all", mode, tokens, size / GIB)
            if mode != config.cache_mode[0]:
                logger.warning("no room for a %s cache; using %s", config.cache_mode[0], mode)
            loaded.loras = [_read_lora(loaded.model, lora) for lora in config.loras]
            return loaded
        # Outside the handler, whose frames hold GPU memory.
        gc.collect()
        torch.cuda.empty_cache()
    raise NoRoom(
        "the GPUs had less memory than estimated: raise gpu_reserve, or lower cache_tokens",
        "gpu_reserve",
    )


def free_memory() -> list[int]:
    """Returns the free bytes of each GPU."""
    return [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]


def _check_gpus(config: ModelConfig, exl2_config: ExLlamaV2Config) -> None:
    num_gpus = torch.cuda.device_count()
    if config.tensor_parallel:
        num_shares = sum(map(bool, config.gpu_split)) or num_gpus
        tensor_parallel.check(ExLlamaV2(exl2_config), min(num_shares, num_gpus))
    if not has_pages(exl2_config):
        if config.tensor_parallel or config.has_draft:
            raise ModelError(
                "tensor_parallel, draft_model and ngram_draft need flash-attn 2.5.7 or newer, on"
                " GPUs of compute capability 8.0 or above"
            )
        logger.warning(
            "there is no flash-attn 2.5.7 or newer for this model and GPU: only ONE job at a"
            " time is served, and the others wait"
        )
    if len(config.gpu_split) > num_gpus:
        raise ModelError(
            f"gpu_split names {len(config.gpu_split)} GPUs, but there are {num_gpus}", "gpu_split"
        )


def has_pages(exl2_config: ExLlamaV2Config) -> bool:
    """Whether jobs can share the cache, which needs flash-attn."""
    return attn.has_flash_attn_with_paged and not exl2_config.no_flash_attn


def _read_lora(model: ExLlamaV2, lora: Lora) -> ExLlamaV2Lora:
    try:
        return ExLlamaV2Lora.from_directory(model, lora.path, lora.scaling)
    except Exception as reason:  # exllamav2 raises errors of any kind
        raise ModelError(
            f"LoRA {lora.name} can't be loaded: {type(reason).__name__}: {reason}", "loras"
        ) from reason


def _load_checked(
    config: ModelConfig,
    configs: Sequence[ExLlamaV2Config],
    mode: CacheMode,
    tokens: int,
    progress: Callback,
    index: int | None,
    num_kept: int,
) -> LoadedModel:
    """Like `_load`, but uses exllamav2's products if ours differ from them."""
    try:
        return _load(config, configs, mode, tokens, progress, index, num_kept)
    except ProductsRefused as error:
        reason = str(error)
        logger.warning(
            "our own matrix products failed their check, so the model is reloaded: %s", reason
        )
    gc.collect()  # outside the handler, whose frames hold the GPU's memory
    torch.cuda.empty_cache()
    return _load(config, configs, mode, tokens, progress, index, num_kept, reason)


def _load(
    config: ModelConfig,
    configs: Sequence[ExLlamaV2Config],
    mode: CacheMode,
    tokens: int,
    progress: Callback,
    index: int | None,
    num_kept: int,
    reason: str | None = None,
) -> LoadedModel:
    """`configs`: the draft model's configuration, if there is one, followed by the main model's.
    `index`: the index of the GPU with room for everything, or None if there is none. `num_kept`:
    the number of modules with room for a copy of their weights. `reason`: why our own products
    can't be used. Raises ProductsRefused.
    """
    if not has_pages(configs[-1]):
        configs[-1].no_sdpa = True  # with SDPA, exllamav2 lets prompt tokens see later ones
    models = [ExLlamaV2(one) for one in configs]
    # exllamav2's graphs of single layers can't be part of our graphs. A model without our graphs
    # keeps them.
    has_passes = index is not None and has_pages(configs[-1]) and is_plain(models[-1])
    has_passes = has_passes and not (config.has_draft or config.loras)
    configs[-1].no_graphs = has_passes
    if reason is None:
        reason = obstacle(config, models[-1], has_passes, index or 0)
    kernels, products = _kernels(index or 0, reason)
    for model in models:
        set_windows(model)
        experts.take_over(model)
    if config.tensor_parallel:
        # Without a split, ExLlamaV2 would query nvidia-smi and leave no reserve.
        split = config.gpu_split or [
            max(size / GIB - config.gpu_reserve, 0) for size in free_memory()
        ]
        cache = tensor_parallel.load(models[0], split, CACHES[mode], tokens, progress)
        set_tables(models[0])
        return LoadedModel(models[0], cache, mode, products=products)
    caches = _load_weights(config, models, mode, tokens, progress)
    model, cache = models[-1], caches[-1]
    is_paged = has_pages(configs[-1])
    loaded = LoadedModel(model, cache, mode, products=products, is_paged=is_paged)
    if has_passes and can_capture(model):
        loaded.passes = _passes(model, cache, config.max_batch_size, kernels, num_kept)
    elif kernels is not None:
        loaded.products = "exllamav2: its passes can't be captured"
    if len(models) > 1:
        loaded.draft_model, loaded.draft_cache = models[0], caches[0]
    return loaded


def _load_weights(
    config: ModelConfig,
    models: Sequence[ExLlamaV2],
    mode: CacheMode,
    tokens: int,
    progress: Callback,
) -> list[Any]:
    """Load the weights. Returns the models' caches."""
    callbacks, caches = parts(progress, [len(model.modules) for model in models]), []
    for model, callback in zip(models, callbacks, strict=True):
        if model is models[-1] and config.gpu_split:
            model.load(list(config.gpu_split), callback=callback)
            caches.append(CACHES[mode](model, max_seq_len=tokens))
        else:
            caches.append(CACHES[mode](model, max_seq_len=tokens, lazy=True))
            reserve = int(max(config.gpu_reserve - MIN_GPU_RESERVE - LIBRARIES, 0) * GIB)
            model.load_autosplit(caches[-1], reserve_vram=reserve, callback=callback)
        set_tables(model)
    torch.cuda.empty_cache()  # memory freed during the load, which graphs can't use
    return caches


def _kernels(index: int, reason: str | None) -> tuple[Kernels | None, str]:
    """Returns the kernels of our own products and the status text about them. The kernels are None
    if our products can't be used.
    """
    kernels = None
    if reason is None:
        try:
            kernels = Kernels(index)
        except Unavailable as error:
            reason = str(error)
    products = "own" if reason is None else f"exllamav2: {reason}"
    logger.info("products: %s", products)
    return kernels, products


def _passes(
    model: ExLlamaV2, cache: Any, max_rows: int, kernels: Kernels | None, num_kept: int
) -> CapturedPasses:
    modules = multiplying(model)
    own = None if kernels is None else take_over(model, cache, kernels, modules)
    kept = _keep(model, cache, modules, num_kept, kernels)
    layers = Exl2Layers(model, cache, PAGE_SIZE, own)
    joint = None if own is None else layers.joint_logits
    return CapturedPasses(layers, model.config.max_seq_len, PAGE_SIZE, max_rows, kept, joint)


def _keep(
    model: ExLlamaV2, cache: Any, modules: Sequence[Any], most: int, kernels: Kernels | None
) -> Kept | None:
    """Makes float16 copies of the weights of the first `most` modules, or of as many as there is
    room for.
    """
    if not most:
        return None
    kept = Kept(model, cache, None if kernels is None else kernels.activate)
    number = kept.add(modules[:most])
    logger.info(
        "made float16 copies of the weights of %d of %d modules, %.1f GiB",
        number,
        len(modules),
        kept.num_bytes / GIB,
    )
    return kept if number else None


def _is_out_of_memory(error: Exception) -> bool:
    # The messages of ExLlamaV2's two ways of splitting, and of torch.
    told = ("Insufficient VRAM", "Insufficient space in device allocation")
    return isinstance(explain(error), OutOfMemory) or any(text in str(error) for text in told)
