"""Moves pages within the cache when the generator defragments."""

import itertools

import torch


def cache_rotate(cache: torch.Tensor, order: torch.Tensor, temp: torch.Tensor) -> None:
    """Copy each page of `order` over the page before it in `order`, and the first over the last.
    `cache`: (pages, elements of a page). `temp`: as large as one page.
    """
    pages = order.tolist()
    first = temp.view(-1)
    first.copy_(cache[pages[0]])
    for page, source in itertools.pairwise(pages):
        cache[page].copy_(cache[source])
    cache[pages[-1]].copy_(first)
