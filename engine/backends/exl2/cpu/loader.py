"""Loads a model and its cache without a GPU. Import it after `install()`."""

from exllamav2 import ExLlamaV2Config

from switchyard.engine.backends.exl.loaded import LoadedModel
from switchyard.engine.backends.exl.progress import Callback, parts
from switchyard.engine.backends.exl2.cpu.cache import CpuCache
from switchyard.engine.backends.exl2.cpu.llama import CpuLlama
from switchyard.engine.backends.exl2.load.config import read_draft_config
from switchyard.engine.config import ModelConfig
from switchyard.engine.memory.residency import check_host


def load(config: ModelConfig, exl2_config: ExLlamaV2Config, progress: Callback) -> LoadedModel:
    """Returns the model and its float32 cache. Raises ModelError. Raises NoRoom before any weights
    are read.
    """
    tokens = config.cache_tokens
    assert tokens != "auto", "make_backend refuses it"
    configs = [exl2_config]
    if config.draft_model is not None:
        configs.append(read_draft_config(config, exl2_config, "cpu"))
    models = [CpuLlama(one) for one in configs]
    check_host(config)
    callbacks = parts(progress, [one.num_hidden_layers for one in configs])
    for model, callback in zip(models, callbacks, strict=True):
        model.load(callback)
    caches = [CpuCache(model, max_seq_len=tokens) for model in models]
    loaded = LoadedModel(models[0], caches[0], "float32")
    if config.draft_model is not None:
        loaded.draft_model, loaded.draft_cache = models[1], caches[1]
    return loaded
