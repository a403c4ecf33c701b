"""What tests of the real generator say about its jobs: prompts, tokens, faults."""

import itertools
import random
from collections import Counter

from switchyard.engine.messages import Chunk
from switchyard.engine.sampling import Sampling
from tests.engine.forced import run
from tests.scripted import job

GREEDY = Sampling(temperature=0.0)


def prompt(seed, length):
    rng = random.Random(seed)
    return tuple(rng.randrange(300, 4000) for _ in range(length))


def free_pages(backend):
    return len(backend._generator.unreferenced_pages)


def states(backend):
    """Keys and values of each layer, (1, tokens, 2 * heads, head_dim)."""
    cache = backend._loaded.cache
    return cache.library.cpu_cache.states if hasattr(cache, "library") else cache.states


def chain(*token_ids):
    """Each token is followed by the next; the last by itself."""
    following = dict(itertools.pairwise(token_ids))
    return lambda token_id: {following.get(token_id, token_ids[-1]): 0.0}


def pieces(backend, *texts):
    """The single tokens that `texts` are."""
    hf = backend._tokenizer._tokenizer
    ids = [hf.encode(text, add_special_tokens=False).ids for text in texts]
    assert all(len(i) == 1 for i in ids), ids
    return [i[0] for i in ids]


class Faults:
    """Wraps `forward_chunk`: raises in decode steps while `left` is positive."""

    def __init__(self):
        self.left = 0

    def __call__(self, forward):
        def wrapped(*args, preprocess_only=False, **kwargs):
            if self.left and not preprocess_only:
                self.left -= 1
                raise RuntimeError("out of memory")
            return forward(*args, preprocess_only=preprocess_only, **kwargs)

        return wrapped


def draws(backend, sampling, times=100, max_batch=20):
    jobs = [
        job(f"job{i}", 1, prompt=(1,), sampling=Sampling(**{**sampling, "seed": i}))
        for i in range(times)
    ]
    events = run(backend, *jobs)
    return Counter(e.token_ids[0] for es in events.values() for e in es if isinstance(e, Chunk))
