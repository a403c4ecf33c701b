"""How far a request is that has no text yet. Pure but for the clock; request threads."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NotRequired

from typing_extensions import TypedDict  # which pydantic needs before Python 3.12

from switchyard import engine
from switchyard.app.delivery.render import Body, Render, Wrapped


class PromptProgress(TypedDict):
    """Under the names that llama.cpp's clients read, and `place`."""

    total: int
    cache: int
    processed: int
    time_ms: float
    place: NotRequired[int]


def tell(event: engine.JobEvent) -> str | None:
    """In a few words; None once it is at work on its text, or of what says nothing of it."""
    match event:
        case engine.Queued():
            return f"queued {event.place}"
        case engine.Prefill():
            return f"prefill {event.done_tokens}/{event.total_tokens}"
    return None


class WithProgress(Wrapped):
    """Bodies of a stream, each with its new text, and between them how far the prompts are."""

    def __init__(
        self,
        render: Render,
        identifiers: Sequence[str],
        empty: Callable[[int], dict[str, Any]],
    ) -> None:
        """`empty`: a body of the choice of that index without any text."""
        super().__init__(render)
        self._index = {identifier: i for i, identifier in enumerate(identifiers)}
        self._empty = empty
        self._started: dict[str, float] = {}

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[Body]:
        newest: dict[str, PromptProgress] = {}  # of each job, where several have piled up
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
