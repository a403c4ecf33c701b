"""A model whose next token a test decides, for the real generator."""

import functools
import gc
import importlib
import threading
from types import SimpleNamespace

import torch

from switchyard.engine.backends.base import Backend
from switchyard.engine.backends.exl2 import cpu
from switchyard.engine.config import ModelConfig
from switchyard.engine.grammar.grammars import Grammars
from switchyard.engine.model.model_dir import ModelDir
from tests.conftest import read_tokenizer
from tests.engine.exl3 import stand_in

LIBRARY = "exl2"  # that of the test; tests/engine/conftest.py sets it


class ForcedModel:
    """Logits of the next token by the last one: `logits(token_id)` gives {token id: logit}, all
    others are -50. `before(input_ids, is_prefill)` is called before each forward pass.
    """

    def __init__(self, config, logits, before=None):
        self.config = config
        self.dtype = torch.float32
        self.cache_map = {}
        self._logits = logits
        self._before = before

    def forward_chunk(self, input_ids, *args, preprocess_only=False, **kwargs):
        if self._before is not None:
            self._before(input_ids, preprocess_only)
        if preprocess_only:
            return {}
        size = -(-self.config.vocab_size // 32) * 32
        logits = torch.full((*input_ids.shape, size), -50.0)
        for row, token_ids in enumerate(input_ids.tolist()):
            for column, token_id in enumerate(token_ids):
                for next_id, value in self._logits(token_id).items():
                    logits[row, column, next_id] = value
        return {"logits": logits}

    def unload(self):
        pass


@functools.cache
def import_library():
    """Its modules live to the end: no collection of garbage needs to look at them."""
    cpu.install()
    importlib.import_module("switchyard.engine.backends.exl2.backend")
    gc.freeze()


def exl2_backend(
    path,
    wrap=None,
    logits=None,
    before=None,
    is_overlapping=False,
    grammars=None,
    library=None,
    **config,
) -> Backend:
    """The real generator on the CPU: over the model at `path`, its `forward_chunk` wrapped by
    `wrap`, or over a ForcedModel with its configuration. `is_overlapping`: in the order in which
    it works on a GPU. `grammars`: the model's, if they exist. `library`: "exl3" puts this server's
    adapter for exllamav3 between the generator and the model; by default a mark of the test says.
    """
    import_library()
    from switchyard.engine.backends.exl2.backend import Exl2Backend

    read, load_model = _plain(logits, before)
    if (library or LIBRARY) == "exl3":
        read, load_model = stand_in.adapted(read, load_model)

    def load(*args):
        loaded = load_model(*args)
        if wrap is not None:
            loaded.model.forward_chunk = wrap(loaded.model.forward_chunk)
        return loaded

    class TestedBackend(Exl2Backend):
        def _open(self):
            model_dir = ModelDir.read(path)
            self._grammars = self._grammars or Grammars(read_tokenizer(model_dir))
            return super()._open()

        def _prove(self, prompt_tokens=2, new_tokens=2):
            """Shorter: it runs for each of a thousand backends."""
            super()._prove(prompt_tokens, new_tokens)

        def _make_generator(self):
            generator = super()._make_generator()
            generator.is_overlapping = is_overlapping
            return generator

    config = ModelConfig(path=path, name="test", **config)
    return TestedBackend(config, "cpu", load, grammars, read=read)


def _plain(logits, before):
    """`read` and `load` of the backend for EXL2: for the CPU's Llama, or a ForcedModel."""
    from switchyard.engine.backends.exl.loaded import LoadedModel
    from switchyard.engine.backends.exl2.cpu.cache import CpuCache
    from switchyard.engine.backends.exl2.cpu.loader import load as load_cpu
    from switchyard.engine.backends.exl2.load.config import read_config

    def load(config, exl2_config, progress):
        if logits is None:
            return load_cpu(config, exl2_config, progress)
        model = ForcedModel(exl2_config, logits, before)
        return LoadedModel(model, CpuCache(model, max_seq_len=config.cache_tokens), "float32")

    return read_config, load


def step(backend):
    """The events of the next step, once there is one that a job can take."""
    wake = threading.Event()
    while backend.is_waiting(wake.set):
        assert wake.wait(20)
        wake.clear()
    return backend.iterate()


def run(backend, *jobs, limit=5000):
    """Start `jobs` as there is room and iterate until all have ended; events by identifier."""
    waiting, events = list(jobs), {job.identifier: [] for job in jobs}
    num_left = len(jobs)
    for _ in range(limit):
        while waiting and backend.has_room(waiting[0]):
            backend.enqueue(waiting.pop(0))
        for event in step(backend):
            events[event.identifier].append(event)
            num_left -= type(event).__name__ in ("Finished", "Failed")
        if not num_left:
            return events
    raise AssertionError(f"not done after {limit} iterations")


def ending(events):
    """(text, last event) of one job."""
    text = "".join(event.text for event in events if hasattr(event, "text"))
    return SimpleNamespace(text=text, last=events[-1])
