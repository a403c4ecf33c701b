"""What tests of the real generator say about its jobs: prompts, tokens, faults."""

import itertools
import random
from collections import Counter

from switchyard.engine.messages import Chunk
from switchyard.engine.sampling import Sampling
from tests.engine.forced import ending, run
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


class Failing:
    """Called before each pass of a ForcedModel. `errors`: (is_prefill, error), each raised once, by
    the next pass of its kind.
    """

    def __init__(self):
        self.errors = []

    def __call__(self, input_ids, is_prefill):
        if self.errors and self.errors[0][0] == is_prefill:
            raise self.errors.pop(0)[1]


class Rule:
    """Of a sampler; it allows all."""

    is_ready = True
    is_done = False

    def begin(self):
        assert self.is_ready

    def close(self):
        pass

    def limit(self):
        assert self.is_ready

    def accept(self, token_id):
        pass


def texts_of(backend, num_tokens, lengths, *samplings):
    """Texts of jobs that run together, with prompts of these lengths; greedy ones by default."""
    several = [GREEDY] * len(lengths)
    jobs = [
        job(f"job{i}", num_tokens, prompt=prompt(i, n), sampling=sampling, ignore_eos=True)
        for i, (n, sampling) in enumerate(zip(lengths, samplings or several, strict=True))
    ]
    events = run(backend, *jobs)
    return [ending(events[one.identifier]).text for one in jobs]


def draws(backend, sampling, times=100):
    jobs = [
        job(f"job{i}", 1, prompt=(1,), sampling=Sampling(**{**sampling, "seed": i}))
        for i in range(times)
    ]
    events = run(backend, *jobs)
    return Counter(e.token_ids[0] for es in events.values() for e in es if isinstance(e, Chunk))
