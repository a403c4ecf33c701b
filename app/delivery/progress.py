"""Progress of a request before its first text: queue and prefill. Runs on request threads.

Pure except for the clock.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.delivery.render import Body, Render, Wrapped


class PromptProgress(TypedDict):
    """Progress under llama.cpp's names, and the job's `place` in the queue."""

    total: int
    cache: int
    processed: int
    time_ms: float
    place: NotRequired[int]


def tell(event: engine.JobEvent) -> str | None:
    """The progress that an event reports, in a few words. None for other events."""
    match event:
        case engine.Queued():
            return f"queued {event.place}"
        case engine.Prefill():
            return f"prefill {event.done_tokens}/{event.total_tokens}"
    return None


class WithProgress(Wrapped):
    """Adds bodies with the progress of prompt processing to a stream."""

    def __init__(
        self,
        render: Render,
        identifiers: Sequence[str],
        empty: Callable[[int], dict[str, Any]],
    ) -> None:
        """`empty`: makes a body without text for the choice with the given index."""
        super().__init__(render)
        self._index = {identifier: i for i, identifier in enumerate(identifiers)}
        self._empty = empty
        self._started: dict[str, float] = {}

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[Body]:
        newest: dict[str, PromptProgress] = {}  # the latest progress of each job
        for event in events:
            match event:
                case engine.Started():
                    self._started[event.identifier] = time.monotonic()
                case engine.Queued():
                    newest[event.identifier] = {
                        "total": event.prompt_tokens,
                        "cache": 0,
                        "processed": 0,
                        "time_ms": 0.0,
                        "place": event.place,
                    }
                case engine.Prefill():
                    now = time.monotonic()
                    seconds = now - self._started.get(event.identifier, now)
                    newest[event.identifier] = {
                        "total": event.total_tokens,
                        "cache": event.cached_tokens,
                        "processed": event.done_tokens,
                        "time_ms": round(seconds * 1000, 3),
                    }
        for identifier, progress in newest.items():
            yield {**self._empty(self._index[identifier]), "prompt_progress": progress}, ""
        yield from self.inner(events)
