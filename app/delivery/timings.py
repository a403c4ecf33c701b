"""Times and rates of a request's stages, under llama.cpp's names. Pure except for the clock."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    Any,
    NotRequired,  # required by pydantic before Python 3.12
)

from typing_extensions import TypedDict

from switchyard import engine
from switchyard.app.delivery.render import Body, Render, Wrapped


class TimingsBody(TypedDict):
    queue_ms: float
    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: NotRequired[int]
    draft_n_accepted: NotRequired[int]


def timings(finished: Sequence[engine.Finished], num_jobs: int) -> TimingsBody:
    """The timings of a request: for each stage, the time of the longest job and the number of
    tokens of all jobs.

    `finished` holds `num_jobs` jobs for the first prompt, then as many for each further prompt. A
    job's first token belongs to the prefill, so the decoding rate is that of the other tokens. The
    rate of a stage without tokens or time is 0, as in llama.cpp.
    """
    prompt_tokens = sum(f.prompt_tokens - f.cached_tokens for f in finished[::num_jobs])
    decoded_tokens = sum(max(f.new_tokens - 1, 0) for f in finished)
    prompt_ms = _milliseconds(max(f.timings.prefill for f in finished))
    predicted_ms = _milliseconds(max(f.timings.decode for f in finished))
    told: TimingsBody = {
        "queue_ms": _milliseconds(max(f.timings.queue for f in finished)),
        "cache_n": sum(f.cached_tokens for f in finished[::num_jobs]),
        "prompt_n": prompt_tokens,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": _ratio(prompt_ms, prompt_tokens),
        "prompt_per_second": _ratio(1000 * prompt_tokens, prompt_ms),
        "predicted_n": sum(f.new_tokens for f in finished),
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": _ratio(predicted_ms, decoded_tokens),
        "predicted_per_second": _ratio(1000 * decoded_tokens, predicted_ms),
    }
    if guessed := sum(f.draft_tokens for f in finished):
        told["draft_n"] = guessed
        told["draft_n_accepted"] = sum(f.accepted_tokens for f in finished)
    return told


class WithTimings(Wrapped):
    """Adds timings to the last body of an answer."""

    def __init__(self, render: Render, identifiers: Sequence[str], num_jobs: int) -> None:
        """`identifiers`: the identifiers of all jobs, in order. `num_jobs`: the number of jobs for
        each prompt.
        """
        super().__init__(render)
        self._identifiers = identifiers
        self._num_jobs = num_jobs
        self._finished: dict[str, engine.Finished] = {}

    def __call__(self, events: Sequence[engine.JobEvent]) -> list[Body]:
        bodies = list(self.inner(events))
        self._note(events)
        if bodies and len(self._finished) == len(self._identifiers):
            body, text = bodies[-1]
            bodies[-1] = self._with_timings(body), text
        return bodies

    def add(self, events: Sequence[engine.JobEvent]) -> None:
        super().add(events)
        self._note(events)

    def whole(self) -> dict[str, Any]:
        body = super().whole()
        assert isinstance(body, dict)
        return self._with_timings(body)

    def _note(self, events: Sequence[engine.JobEvent]) -> None:
        for event in events:
            if isinstance(event, engine.Finished):
                self._finished[event.identifier] = event

    def _with_timings(self, body: dict[str, Any]) -> dict[str, Any]:
        finished = [self._finished[identifier] for identifier in self._identifiers]
        return {**body, "timings": timings(finished, self._num_jobs)}


@dataclass(slots=True)
class _Running:
    """A job's state as this thread has seen it."""

    queue: float = 0.0  # seconds in the queue
    first: float | None = None  # the time of the first token, by the monotonic clock
    new_tokens: int = 0
    cached_tokens: int = 0


class WithRunningTimings(Wrapped):
    """Adds to each body with new tokens the timings of the body's choice so far."""

    def __init__(self, render: Render, lengths: Mapping[str, int]) -> None:
        """`lengths`: the number of tokens in each job's prompt."""
        super().__init__(render)
        self._lengths = lengths
        self._jobs = {identifier: _Running() for identifier in lengths}
        self._begun: set[str] = set()  # jobs whose first body has been made
        self._since = time.monotonic()

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[Body]:
        if not events:
            yield from self.inner(events)
        for event in events:
            bodies = list(self.inner([event]))
            told = self._note(event)
            if bodies:
                body, text = bodies[-1]
                # A chat's first body contains the role, and has no timings, as in llama.cpp.
                is_role = len(bodies) == 1 and not text and event.identifier not in self._begun
                self._begun.add(event.identifier)
                if told is not None and not is_role:
                    bodies[-1] = {**body, "timings": told}, text
            yield from bodies

    def text_body(self, identifier: str) -> None:
        """Returns None, because each body has its own timings."""

    def _note(self, event: engine.JobEvent) -> TimingsBody | None:
        """The timings of the event's job if the event has new tokens; otherwise None."""
        job, now = self._jobs[event.identifier], time.monotonic()
        match event:
            case engine.Started():
                job.queue = event.queue
            case engine.PutBack():
                self._jobs[event.identifier] = _Running()
            case engine.Prefill():
                job.cached_tokens = event.cached_tokens
            case engine.Chunk():
                job.first = now if job.first is None else job.first
                job.new_tokens += len(event.token_ids)
                prefill = max(job.first - self._since - job.queue, 0.0)
                stages = (job.queue, prefill, now - job.first)
                told = engine.Finished(
                    event.identifier,
                    "length",
                    self._lengths[event.identifier],
                    job.new_tokens,
                    job.cached_tokens,
                    timings=engine.Timings(*stages),
                )
                return timings([told], 1)
        return None


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _ratio(dividend: float, divisor: float) -> float:
    return round(dividend / divisor, 6) if divisor else 0.0
