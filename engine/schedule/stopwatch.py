"""Measures the phases of jobs. Used only on the engine thread."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from switchyard.engine.errors import ConstraintTooSlow
from switchyard.engine.job import Job
from switchyard.engine.messages import (
    Chunk,
    Failed,
    Finished,
    JobEvent,
    Prefill,
    PutBack,
    Started,
    Timings,
)
from switchyard.engine.schedule.counters import Counters


@dataclass(slots=True)
class _Times:
    submitted: float
    length: int  # of the prompt, in tokens
    started: float | None = None
    first_token: float | None = None
    done_tokens: int | None = None  # tokens of the prompt that are computed, or found in the cache
    is_counted: bool = False  # whether the prompt has been counted


class Stopwatch:
    """The times of an engine's jobs. A job that is put back waits again, and its queue time
    continues.
    """

    def __init__(self, counters: Counters) -> None:
        """`counters`: receives the measured times."""
        self._counters = counters
        self._times: dict[str, _Times] = {}
        self._untold: set[str] = set()  # jobs without a token

    def submit(self, job: Job, submitted: float) -> None:
        self._times[job.identifier] = _Times(submitted, job.num_prompt_tokens)
        self._untold.add(job.identifier)
        self._counters.submit(job)

    def start(self, identifier: str) -> None:
        self._times[identifier].started = time.monotonic()

    def stamp(self, events: Sequence[JobEvent]) -> list[JobEvent]:
        """Returns the same events, with the job's times in each `Started` and `Finished`."""
        now = time.monotonic()
        return [
            event  # nearly always
            if isinstance(event, Chunk) and event.identifier not in self._untold
            else self._stamp(event, now)
            for event in events
        ]

    def _stamp(self, event: JobEvent, now: float) -> JobEvent:
        times = self._times.get(event.identifier)
        if times is None:
            return event
        if times.started is not None and not times.is_counted:
            times.is_counted = True
            self._counters.totals.prompt_tokens += times.length
        match event:
            case Started():
                return replace(event, queue=_timings(times, now).queue)
            case Chunk():
                times.first_token = now
                self._untold.discard(event.identifier)
                self._counters.first_token(now - times.submitted)
            case Prefill():
                self._counters.prefill(event, times.done_tokens)
                times.done_tokens = event.done_tokens
            case PutBack():
                times.started = None
                self._counters.totals.put_back += 1
            case Failed() | Finished():
                del self._times[event.identifier]
                self._untold.discard(event.identifier)
        if isinstance(event, Failed):
            self._counters.fail(is_too_slow=isinstance(event.error, ConstraintTooSlow))
        if isinstance(event, Finished):
            event = replace(event, timings=_timings(times, now))
            self._counters.finish(event, times.started is not None)
        return event

    def drop_all(self) -> None:
        """Forget all jobs, because they have failed."""
        self._counters.fail(len(self._times))
        self._times.clear()
        self._untold.clear()


def _timings(times: _Times, now: float) -> Timings:
    started = now if times.started is None else times.started
    first_token = now if times.first_token is None else times.first_token
    return Timings(started - times.submitted, first_token - started, now - first_token)
