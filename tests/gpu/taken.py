"""Bytes that a model takes on a GPU, and what was estimated: python -m tests.gpu.taken MODEL_DIR
CACHE_MODE TOKENS.
"""

import json
import sys

import torch

from switchyard.engine.backends import make_backend
from switchyard.engine.config import ModelConfig
from switchyard.engine.memory.estimate import Memory
from switchyard.engine.model.footprint import measure
from tests.engine.exl2.drive import GREEDY
from tests.engine.forced import run
from tests.scripted import job

ROOM = 2**40  # bytes: nothing is refused


def main() -> None:
    path, mode, tokens = sys.argv[1:]
    config = ModelConfig(path, "taken", device="cuda", cache_mode=(mode,), cache_tokens=int(tokens))
    [footprint], lengths = measure(config)
    backend = make_backend(config)
    backend.open()
    torch.cuda.reset_peak_memory_stats()  # loading took more for a while
    prompt = tuple(range(300, 1500))
    run(backend, *(job(f"job{i}", 8, prompt=prompt, sampling=GREEDY) for i in range(8)))
    cache = backend._loaded.cache.all_tensors()
    memory = Memory(config, [footprint], [ROOM], lengths.max_seq_len)
    copies = sum(memory.unpacked(mode, int(tokens)))
    assert backend.occupancy().kept.num_bytes == copies
    [estimated] = memory.place(mode, int(tokens))
    found = {
        "estimated": estimated + copies,
        "estimated_cache": footprint.cache(mode, int(tokens)),
        "cache": sum(t.nbytes for t in cache if t is not None),
        "most": torch.cuda.max_memory_allocated(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
