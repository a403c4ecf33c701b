"""The threads that compute masks, for all jobs of a model."""

import heapq
import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

Compute = Callable[[], Any]


def num_cores() -> int:
    """The number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class MaskThreads:
    """Computes the masks with the lowest `debt` first. All threads are started in advance, so that
    no job has to start one.
    """

    def __init__(self, name: str, max_jobs: int) -> None:
        """`max_jobs`: the maximum number of jobs, each with one mask at a time."""
        self._serials = itertools.count()
        self._changed = threading.Condition()  # guards the attributes below
        self._waiting: list[tuple[float, int, Compute, Future[Any]]] = []  # a heap
        self._wake: Callable[[], None] | None = None
        self._is_open = True
        self._threads = [
            threading.Thread(target=self._run, name=f"masks-{name}_{i}", daemon=True)
            for i in range(max(min(num_cores() - 1, max_jobs), 1))  # one core for the engine thread
        ]
        for thread in self._threads:
            thread.start()

    # Engine thread

    def submit(self, compute: Compute, debt: float) -> Future[Any]:
        """`debt`: the seconds by which the job's client has exceeded its allowance."""
        future: Future[Any] = Future()
        with self._changed:
            heapq.heappush(self._waiting, (debt, next(self._serials), compute, future))
            self._changed.notify()
        return future

    def wake_once(self, wake: Callable[[], None]) -> None:
        """Call `wake` after the next mask, on the mask's thread. Replaces an earlier `wake`."""
        with self._changed:
            self._wake = wake

    def close(self) -> None:
        """Drop waiting masks, and wait for those that are being computed."""
        with self._changed:
            self._is_open = False
            self._waiting.clear()
            self._wake = None
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    # Threads of the masks

    def _run(self) -> None:
        while (task := self._next()) is not None:
            compute, future = task
            if not future.set_running_or_notify_cancel():
                continue
            try:
                mask = compute()
            except BaseException as error:  # includes Rust panics, which aren't of type `Exception`
                future.set_exception(error)
            else:
                future.set_result(mask)
            with self._changed:
                wake, self._wake = self._wake, None
            if wake is not None:
                wake()

    def _next(self) -> tuple[Compute, Future[Any]] | None:
        """Wait for the next mask to compute. Returns None after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._is_open)
            if not self._is_open:
                return None
            _, _, compute, future = heapq.heappop(self._waiting)
            return compute, future
