"""CUDA graphs. Used on the engine thread."""

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")

NUM_TIMES, NUM_TIMED = 3, 5  # runs of a measurement, and replays in each run


def record(pool: Any, compute: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T]:
    """Capture what `compute` launches on the current stream. Returns the graph, and the tensors
    that `compute` returns, which each replay fills again. All other memory comes from `pool`, which
    the graphs share.
    """
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        result = compute()
    finally:
        graph.capture_end()
    return graph, result


@functools.cache
def capturing(index: int) -> tuple[torch.cuda.Stream, threading.Lock]:
    """The stream and the lock that all captures on a GPU share, because torch permanently keeps 32
    MiB for each stream that multiplies matrices. This is not exllamav2's stream, because other
    models may be running there.
    """
    return torch.cuda.Stream(torch.device("cuda", index)), threading.Lock()  # type: ignore[no-untyped-call]


def seconds(
    graph: torch.cuda.CUDAGraph,
    prepare: Callable[[], object],
    num_times: int = NUM_TIMES,
    num_timed: int = NUM_TIMED,
) -> float:
    """Returns the seconds that a replay takes, measured as the minimum of `num_times` runs. Each
    run begins with `prepare`.
    """
    times: list[float] = []
    for _ in range(num_times):
        prepare()
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        begin.record()
        for _ in range(num_timed):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / 1000 / num_timed)
    return min(times)
