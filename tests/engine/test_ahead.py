"""A generator in the order of a GPU, which computes behind tokens that their jobs have not
accepted yet, writes what one writes that waits for them.
"""

from dataclasses import replace

import pytest

from switchyard.engine.messages import Chunk, Finished
from switchyard.engine.sampling import Sampling
from tests.engine.exl2.drive import prompt
from tests.scripted import job

FEW = Sampling(temperature=1.0, top_k=20)  # a float that is a little other draws no other token


def of(name, seed, size, max_new_tokens, **more):
    sampling = replace(FEW, seed=seed)
    if more.pop("is_pair", False):
        sampling = replace(sampling, cfg_scale=1.5)
        more["negative_prompt"] = prompt(seed + 100, size // 2)
    return job(
        name, max_new_tokens, prompt=prompt(seed, size), sampling=sampling, ignore_eos=True, **more
    )


def written(backend, phases):
    """Token ids and the end of each job. `phases`: at which iteration jobs begin."""
    texts, ends = {}, {}
    left, i = dict(phases), 0
    while left or backend.num_jobs:
        for one in left.pop(i, ()):
            backend.enqueue(one)
        for event in backend.iterate():
            if isinstance(event, Chunk):
                texts.setdefault(event.identifier, []).extend(event.token_ids)
            elif isinstance(event, Finished):
                ends[event.identifier] = (event.finish_reason, event.new_tokens)
        i += 1
    return texts, ends


@pytest.mark.parametrize(
    "phases",
    [
        {0: [of("a", 1, 20, 30, is_pair=True)]},
        {0: [of("a", 1, 20, 30, is_pair=True), of("b", 2, 250, 12)], 9: [of("c", 3, 9, 15)]},
        {0: [of("a", 1, 250, 20), of("b", 2, 30, 9)], 7: [of("c", 3, 40, 12, is_pair=True)]},
    ],
    ids=["a pair", "a pair and others", "a pair that comes"],
)
def test_what_is_computed_ahead_is_what_would_have_been(opened, phases):
    ahead, after = (opened(is_overlapping=way, cache_tokens=16 * 256) for way in (True, False))
    texts, ends = written(ahead, phases)
    assert all(len(set(text)) > 5 for text in texts.values())  # else a repetition is not seen
    assert (texts, ends) == written(after, phases)
