"""Counts the work of an engine thread, with a few integer operations per iteration."""

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from switchyard.engine.job import Job
from switchyard.engine.messages import Finished, Prefill
from switchyard.engine.stats import BOUNDS, Histogram, Occupancy, Stats, Totals, Work

INTERVAL = 0.25  # seconds from one event to the next, at least
OCCUPANCY_INTERVAL = 2.0  # seconds between reads of the occupancy, which are slow

RECOVERIES = {"reset": "resets", "rebuild": "rebuilds", "reload": "reloads"}
ENDS = {"stop": "stopped", "length": "cut", "cancelled": "cancelled"}


class _Measured(Protocol):
    """The part of a backend that is counted."""

    work: Work

    def occupancy(self) -> Occupancy: ...


class _Counts:
    """A histogram that grows."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def copy(self) -> Histogram:
        return Histogram(tuple(self.counts), self.total)


class Counters:
    def __init__(self) -> None:
        self.totals = Totals()
        self._sizes = {name: _Counts(bounds) for name, bounds in BOUNDS.items()}
        self._iteration_seconds = self._sizes["iteration_seconds"]
        self._batch_size = self._sizes["batch_size"]
        self._iteration_tokens = self._sizes["iteration_tokens"]
        self._gaps = self._sizes["inter_token_latency_seconds"]
        self._prompt_tokens = 0  # computed in this iteration
        self._num_first = 0  # first tokens of their jobs in this iteration
        self._last: float | None = None  # end of the last iteration; None after an empty batch
        self._occupancy = Occupancy()
        self._has_changed = True
        self._began = time.time()
        self._due = 0.0
        self._occupancy_due = 0.0

    def submit(self, job: Job) -> None:
        self._sizes["request_params_max_tokens"].add(job.max_new_tokens)
        self._has_changed = True

    def prefill(self, event: Prefill, done_tokens: int | None) -> None:
        """`done_tokens`: the number of prompt tokens computed before this event, or None for a
        job's first event.
        """
        if done_tokens is None:
            self.totals.cached_tokens += event.cached_tokens
            done_tokens = event.cached_tokens
        self._prompt_tokens += max(event.done_tokens - done_tokens, 0)

    def first_token(self, seconds: float) -> None:
        self._num_first += 1
        self._sizes["time_to_first_token_seconds"].add(seconds)

    def finish(self, event: Finished, was_started: bool) -> None:
        name, times = ENDS[event.finish_reason], event.timings
        setattr(self.totals, name, getattr(self.totals, name) + 1)
        self.totals.draft_tokens += event.draft_tokens
        self.totals.accepted_tokens += event.accepted_tokens
        inference = times.prefill + times.decode
        sizes = self._sizes
        sizes["e2e_request_latency_seconds"].add(times.queue + inference)
        sizes["request_queue_time_seconds"].add(times.queue)
        if was_started:
            sizes["request_prefill_time_seconds"].add(times.prefill)
            sizes["request_decode_time_seconds"].add(times.decode)
            sizes["request_inference_time_seconds"].add(inference)
            sizes["request_prompt_tokens"].add(event.prompt_tokens)
            sizes["request_generation_tokens"].add(event.new_tokens)
        self._has_changed = True

    def fail(self, times: int = 1, is_too_slow: bool = False) -> None:
        """`is_too_slow`: whether the jobs failed because their constraint took too long."""
        self.totals.failed += times
        self.totals.too_slow += times * is_too_slow
        self._has_changed = True

    def recover(self, how: str) -> None:
        """`how`: the name of the backend's method."""
        name = RECOVERIES[how]
        setattr(self.totals, name, getattr(self.totals, name) + 1)
        self._has_changed = True

    def iterate(self, begin: float, batch_size: int, new_tokens: int) -> None:
        """Count an iteration that began at `begin`, on the monotonic clock, and ends now."""
        now = time.monotonic()
        self.totals.new_tokens += new_tokens
        self._iteration_seconds.add(now - begin)
        self._batch_size.add(batch_size)
        self._iteration_tokens.add(new_tokens + self._prompt_tokens)
        if self._last is not None and new_tokens > self._num_first:
            self._gaps.add(now - self._last, new_tokens - self._num_first)
        self._last = now
        self._prompt_tokens = self._num_first = 0
        self._has_changed = True

    def wait(self) -> float | None:
        """Called when the batch is empty. Returns the seconds until the next event is due, or None
        if no event is due.
        """
        self._last = None
        return max(self._due - time.monotonic(), 0.0) if self._has_changed else None

    def tell(self, backend: _Measured, num_active: int, num_pending: int) -> Stats | None:
        """Returns the next event, or None if it is not due or nothing has changed."""
        now = time.monotonic()
        if now < self._due or not self._has_changed:
            return None
        self._due, self._has_changed = now + INTERVAL, False
        if now >= self._occupancy_due:
            self._occupancy_due = now + OCCUPANCY_INTERVAL
            self._occupancy = backend.occupancy()
        return Stats(
            now,
            replace(self.totals),
            {name: size.copy() for name, size in self._sizes.items()},
            replace(backend.work),
            num_active,
            num_pending,
            self._occupancy,
            self._began,
        )
