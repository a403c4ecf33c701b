"""Pages of the cache moved within it, when the generator defragments."""

import itertools

import torch


def cache_rotate(cache: torch.Tensor, order: torch.Tensor, temp: torch.Tensor) -> None:
    """Each page of `order` becomes what the next one was, the last what the first was.

    `cache`: (pages, elements of a page). `temp`: as large as one page.
    """
    pages = order.tolist()
    first = temp.view(-1)
    first.copy_(cache[pages[0]])
    for page, source in itertools.pairwise(pages):
        cache[page].copy_(cache[source])
    cache[pages[-1]].copy_(first)
