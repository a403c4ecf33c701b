"""Events to bodies of one prompt's answer, as the plain wire formats have them in common. Pure."""

import abc
from collections.abc import Iterator, Sequence
from typing import Any

from switchyard import engine
from switchyard.app.delivery.render import Body, TextBody
from switchyard.app.formats.choices import ChoicesRender


class TextRender(ChoicesRender):
    """A stream has one choice."""

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[Body]:
        for event in events:
            match event:
                case engine.Chunk(text=text) if text:
                    yield self._delta(text), text
                case engine.Finished():
                    yield self._end(event), ""

    def text_body(self, identifier: str) -> TextBody | None:
        return self._delta

    def empty(self, index: int) -> dict[str, Any]:
        return self._delta("")

    # Of one of the formats

    @abc.abstractmethod
    def _delta(self, text: str) -> dict[str, Any]:
        """More text of a stream."""

    @abc.abstractmethod
    def _end(self, finished: engine.Finished) -> dict[str, Any]:
        """The last of a stream."""
