"""How long jobs take for what. Engine thread only."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from switchyard.engine.messages import Chunk, Failed, Finished, JobEvent, PutBack, Timings


@dataclass(slots=True)
class _Times:
    submitted: float
    started: float | None = None
    first_token: float | None = None


class Stopwatch:
    """Of all jobs of an engine. A job that was put back waits again, and its queue time goes on."""

    def __init__(self) -> None:
        self._times: dict[str, _Times] = {}
        self._untold: set[str] = set()  # jobs without a token so far

    def submit(self, identifier: str, submitted: float) -> None:
        self._times[identifier] = _Times(submitted)
        self._untold.add(identifier)

    def start(self, identifier: str) -> None:
        self._times[identifier].started = time.monotonic()

    def stamp(self, events: Sequence[JobEvent]) -> list[JobEvent]:
        """The same events, those that finish a job with its timings."""
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
        match event:
            case Chunk():
                times.first_token = now
                self._untold.discard(event.identifier)
            case PutBack():
                times.started = None
            case Failed() | Finished():
                del self._times[event.identifier]
                self._untold.discard(event.identifier)
        if isinstance(event, Finished):
            return replace(event, timings=_timings(times, now))
        return event


def _timings(times: _Times, now: float) -> Timings:
    started = now if times.started is None else times.started
    first_token = now if times.first_token is None else times.first_token
    return Timings(started - times.submitted, first_token - started, now - first_token)
