"""CUDA graphs. Engine thread."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def record(pool: Any, compute: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """Capture what `compute` launches on the current stream. Returns the graph, and the tensors
    that `compute` returns, which each replay fills anew. Other memory comes from `pool`, which
    graphs share.
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        result = compute()
    finally:
        graph.capture_end()
    return graph, result
