"""The base class of renders for answers with several choices. Pure."""

import abc
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from switchyard import engine
from switchyard.app.delivery.progress import WithProgress
from switchyard.app.delivery.render import Body, Render, TextBody, Whole
from switchyard.app.delivery.timings import WithRunningTimings, WithTimings
from switchyard.app.errors import describe
from switchyard.app.parts.choice import Choice
from switchyard.app.request.generation import Generation


class ChoicesRender(abc.ABC):
    """Renders `choices`, a mapping from the identifiers of jobs to their choices."""

    tells_timings: ClassVar[bool] = False  # whether the render adds timings itself

    def __init__(self, choices: Mapping[str, Choice]) -> None:
        self.choices = choices

    @abc.abstractmethod
    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterable[Body]: ...

    @abc.abstractmethod
    def text_body(self, identifier: str) -> TextBody | None: ...

    @abc.abstractmethod
    def empty(self, index: int) -> dict[str, Any]:
        """A body without text for the choice with the given index."""

    def failed(self, error: Exception) -> Iterable[Body]:
        body = describe(error)[1]
        return [(body, f"\n[error] {body['error']['message']}\n")]

    def add(self, events: Sequence[engine.JobEvent]) -> None:
        for event in events:
            self.choices[event.identifier].add(event)

    @abc.abstractmethod
    def whole(self) -> Whole: ...


def with_extras(
    render: ChoicesRender, request: Generation, prompts: Sequence[Sequence[int]]
) -> Render:
    """The render, with timings and progress if `request` asks for them. `prompts`: the tokens of
    each prompt.
    """
    more: Render = render
    identifiers = list(render.choices)
    is_running = request.timings_per_token and request.stream
    if is_running:
        lengths = (len(prompt) for prompt in prompts for _ in range(request.num_jobs))
        more = WithRunningTimings(more, dict(zip(identifiers, lengths, strict=True)))
    if (request.timings or is_running) and not render.tells_timings:
        more = WithTimings(more, identifiers, request.num_jobs)
    if request.return_progress:
        more = WithProgress(more, identifiers, render.empty)
    return more
