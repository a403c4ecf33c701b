"""exllamav3 without its compiled extension and Triton: its Python can be imported, and computes
nothing. A plain Llama computes in place of its model.
"""

import importlib.machinery
import sys
import types
from types import SimpleNamespace
from unittest.mock import MagicMock

from switchyard.engine.backends import exl3
from switchyard.engine.backends.exl2 import cpu
from switchyard.engine.config import PAGE_SIZE
from switchyard.engine.model.model_dir import ModelDir

TRITON = ("triton", "triton.language")


class _Names(types.ModuleType):
    """A module that has any name. What it has does nothing."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return MagicMock(name=f"{self.__name__}.{name}")


def install():
    """Make `import exllamav3` work. Idempotent."""
    cpu.install()  # the generator's own library
    for name in (exl3.EXTENSION, *TRITON):
        if name not in sys.modules:
            module = _Names(name)
            suffix = importlib.machinery.EXTENSION_SUFFIXES[
                0
            ]  # exllamav3 looks whether it is compiled
            module.__spec__ = importlib.machinery.ModuleSpec(name, None, origin=name + suffix)
            module.__spec__.loader = object()
            sys.modules[name] = module


def remove():
    """Take Triton's stand-in away: torch, which transformers imports, would take it for Triton."""
    for name in TRITON:
        sys.modules.pop(name, None)


def adapted(read_exl2, load_exl2):
    """`read` and `load` of the backend for EXL3, over what those of the backend for EXL2 load."""
    install()
    from switchyard.engine.backends.exl.loaded import LoadedModel
    from switchyard.engine.backends.exl3.cache import Exl3Cache
    from switchyard.engine.backends.exl3.config import read_config
    from switchyard.engine.backends.exl3.model import Exl3Model

    def load(config, exl3_config, progress):
        exl2_config = read_exl2(config, ModelDir.read(config.path), "cpu")
        plain = load_exl2(config, exl2_config, progress)
        model = Exl3Model(exl3_config, PlainLibrary(plain.model))
        return LoadedModel(model, Exl3Cache(PlainCache(plain.cache)), plain.cache_mode)

    return read_config, load


class PlainLibrary:
    """As exllamav3's Model, over the CPU's Llama."""

    def __init__(self, llama):
        self.caps = {}
        self.llama = llama

    def forward(self, input_ids, params):
        return self._pass(input_ids, params)["logits"]

    def prefill(self, input_ids, params):
        self._pass(input_ids, params, preprocess_only=True)

    def _pass(self, input_ids, params, **options):
        assert params["attn_mode"] == "flash_attn"
        # An id without an embedding is no error in a GPU's memory.
        input_ids = input_ids.clamp(0, self.llama.config.vocab_size - 1)
        places = SimpleNamespace(
            block_index=params["block_table"],
            cache_seqlens=params["cache_seqlens"],
            page_size=PAGE_SIZE,
        )
        return self.llama.forward_chunk(input_ids, params["cache"].cpu_cache, places, **options)

    def unload(self):
        self.llama.unload()


class PlainCache:
    """As exllamav3's Cache."""

    def __init__(self, cpu_cache):
        self.cpu_cache = cpu_cache
        self.max_num_tokens = cpu_cache.max_seq_len

    def copy_page(self, target, from_page, to_page, num_tokens):
        first, second = (page * PAGE_SIZE for page in (from_page, to_page))
        for own, other in zip(self.cpu_cache.states, target.cpu_cache.states, strict=True):
            other[:, second : second + num_tokens] = own[:, first : first + num_tokens]
