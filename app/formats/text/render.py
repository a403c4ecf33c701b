"""The base class of renders for one text prompt. Pure."""

import abc
from collections.abc import Iterator, Sequence
from typing import Any

from switchyard import engine
from switchyard.app.delivery.render import Body, TextBody
from switchyard.app.formats.choices import ChoicesRender


class TextRender(ChoicesRender):
    """The base class of the plain formats' renders. A stream has one choice."""

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

    # Implemented by each format

    @abc.abstractmethod
    def _delta(self, text: str) -> dict[str, Any]:
        """The body for further text in a stream."""

    @abc.abstractmethod
    def _end(self, finished: engine.Finished) -> dict[str, Any]:
        """The last body of a stream."""
