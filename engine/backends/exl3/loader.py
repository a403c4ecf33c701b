"""Loads an EXL3 model and its cache on one GPU. Import it after `install()`. Used on the engine
thread.
"""

import contextlib
import gc
import io
import logging
from typing import Any

import torch
from exllamav3 import Cache, Model
from exllamav3.cache import CacheLayer_fp16, CacheLayer_quant

from switchyard.engine.backends.exl.faults import explain
from switchyard.engine.backends.exl.loaded import LoadedModel
from switchyard.engine.backends.exl.progress import Callback
from switchyard.engine.backends.exl2.cuda.captured.graphs import capturing, record
from switchyard.engine.backends.exl2.cuda.captured.passes import CapturedPasses
from switchyard.engine.backends.exl3 import check_capability
from switchyard.engine.backends.exl3.cache import Exl3Cache
from switchyard.engine.backends.exl3.config import Exl3Config
from switchyard.engine.backends.exl3.layers import Exl3Layers, can_capture
from switchyard.engine.backends.exl3.model import Exl3Model
from switchyard.engine.config import PAGE_SIZE, CacheMode, ModelConfig, cache_bits
from switchyard.engine.errors import ModelError, NoRoom, OutOfMemory
from switchyard.engine.memory.estimate import GIB, Memory
from switchyard.engine.model.footprint import measure

logger = logging.getLogger(__name__)

MOST_ROWS = 8  # of the passes that compile kernels before any job starts
PROVED = (1, 16)  # rows of the passes whose graphs are compared with passes without one
MOST_DIFFERENCE = 1e-2  # relative difference of their logits


def load(config: ModelConfig, exl3_config: Exl3Config, progress: Callback) -> LoadedModel:
    """Returns the model with the first cache that fits. Raises ModelError if none fits."""
    for i in range(torch.cuda.device_count()):
        check_capability(i, torch.cuda.get_device_name(i), torch.cuda.get_device_capability(i))
    footprints, _ = measure(config)
    free = [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]
    memory = Memory(config, footprints, free, exl3_config.max_seq_len)
    for mode, tokens in memory.caches():
        gpu = next(i for i, size in enumerate(memory.place(mode, tokens)) if size)
        try:
            loaded = _load(config, exl3_config, mode, tokens, torch.device("cuda", gpu))
        except Exception as error:
            if not isinstance(explain(error), OutOfMemory):
                raise
            logger.warning("a %s cache did not fit after all: %s", mode, error)
        else:
            progress(1, 1)
            size = sum(one.weights + one.cache(mode, tokens) for one in footprints)
            logger.info("%s cache of %d tokens, %.1f GiB in all", mode, tokens, size / GIB)
            return loaded
        # Outside the handler, whose frames hold GPU memory.
        gc.collect()
        torch.cuda.empty_cache()
    raise NoRoom(
        "the GPU had less memory than estimated: raise gpu_reserve, or lower cache_tokens",
        "gpu_reserve",
    )


def _load(
    config: ModelConfig, exl3_config: Exl3Config, mode: CacheMode, tokens: int, device: torch.device
) -> LoadedModel:
    library = Model.from_config(exl3_config.library)
    if library.get_recurrent_layers():
        raise ModelError("EXL3 models with recurrent layers are not supported")
    pages = own_cache(library, mode, tokens)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        library.load(device=device)
        logger.info("compiling and measuring kernels; the first start on a machine takes a minute")
        most_rows = min(config.max_batch_size, MOST_ROWS)
        failed = library.warmup(pages, exl3_config.max_input_len, most_rows)
    for line in filter(None, map(str.strip, printed.getvalue().splitlines())):
        logger.info("exllamav3: %s", line)
    if failed:
        raise ModelError(f"exllamav3 can't run this model on this GPU; it failed at {failed[0]}")
    cache = Exl3Cache(pages)
    loaded = LoadedModel(Exl3Model(exl3_config, library), cache, mode)
    if can_capture(library) and (layers := _proved(library, cache, device)) is not None:
        max_seq_len, max_rows = exl3_config.max_seq_len, config.max_batch_size
        loaded.passes = CapturedPasses(layers, max_seq_len, PAGE_SIZE, max_rows, layers.unpacked)
    return loaded


def own_cache(library: Any, mode: CacheMode, tokens: int) -> Any:
    """Returns exllamav3's cache. Its memory is allocated when its model is loaded."""
    if mode == "float16":
        return Cache(library, max_num_tokens=tokens, layer_type=CacheLayer_fp16)
    k_bits, v_bits = cache_bits(mode)
    return Cache(
        library, max_num_tokens=tokens, layer_type=CacheLayer_quant, k_bits=k_bits, v_bits=v_bits
    )


def _proved(library: Any, cache: Exl3Cache, device: torch.device) -> Exl3Layers | None:
    """Returns the layers if graphs of their passes give the same results as passes without
    graphs.
    """
    layers = Exl3Layers(library, cache, device)
    try:
        for rows in PROVED:
            difference = _difference(layers, rows)
            if not difference < MOST_DIFFERENCE:  # true for NaN as well
                raise RuntimeError(f"the logits of {rows} rows differ by {difference:.1e}")
    except Exception as error:
        if isinstance(explain(error), OutOfMemory):
            raise
        logger.warning("running passes without graphs, which is slower: %s", error)
        layers.close()
        return None
    return layers


@torch.inference_mode()
def _difference(layers: Exl3Layers, rows: int) -> float:
    """The greatest difference between the logits, relative to the greatest logit."""
    stream, lock = capturing(layers.device.index)
    token_ids = torch.ones(rows, dtype=torch.long, device=layers.device)  # all write to page 0
    pages = torch.zeros((rows, 2), dtype=torch.int32, device=layers.device)
    positions = torch.zeros(rows, dtype=torch.int32, device=layers.device)
    torch.cuda.synchronize(layers.device)
    with lock, torch.cuda.stream(stream):
        layers.prepare(token_ids, pages)
        plain = layers.logits(token_ids, positions, pages).float().clone()
        stream.synchronize()
        pool = torch.cuda.graph_pool_handle()
        graph, logits = record(pool, lambda: layers.logits(token_ids, positions, pages))
        graph.replay()
        stream.synchronize()
        return float((logits.float() - plain).abs().max() / plain.abs().max())
