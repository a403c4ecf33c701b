"""CUDA graphs. Engine thread."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def record(pool: Any, compute: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """What `compute` launches on the current stream, and the tensors that it returns, which each
    replay fills anew. Its other memory is of the `pool`, and another graph's, too.
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        result = compute()
    finally:
        graph.capture_end()
    return graph, result
