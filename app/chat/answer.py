"""One choice of a chat as it comes in. Request threads."""

from collections.abc import Callable

from switchyard import engine
from switchyard.app.parts.choice import Choice
from switchyard.app.parts.parser import PartParser
from switchyard.app.parts.parts import Part, Reasoning, ToolCall


class Answer(Choice):
    """Events to parts. An answer that has all the calls it may have is ended there."""

    def __init__(
        self, parser: PartParser, end: Callable[[], object], includes_reasoning: bool = True
    ) -> None:
        """`end` ends the job early."""
        super().__init__()
        self.parts: list[Part] = []  # of the events that were added
        self._parser = parser
        self._end = end
        self._includes_reasoning = includes_reasoning
        self._has_calls = False

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    @property
    def is_plain(self) -> bool:
        """Whether all that follows is text as it comes."""
        return self._parser.is_plain

    @property
    def is_in_call(self) -> bool:
        """Whether it is, or has ended, in the middle of a call."""
        return self._parser.is_in_call

    @property
    def finish_reason(self) -> str:
        """What the engine says, but for calls of tools: an answer that was ended here is
        "cancelled" to the engine. "" as long as it goes on.
        """
        if self.finished is None:
            return ""
        is_ended = self._parser.is_over
        if self.finished.finish_reason == "stop":
            # What a model ends itself in the middle of a call is all of its call.
            is_ended = self.finished.stop_reason is None or not self.is_in_call
        return "tool_calls" if self._has_calls and is_ended else self.finished.finish_reason

    def add(self, event: engine.JobEvent) -> None:
        super().add(event)
        self.parts += self.read(event)

    def read(self, event: engine.JobEvent) -> list[Part]:
        """What is new with it; for who doesn't `add` it."""
        parts: list[Part] = []
        match event:
            case engine.Chunk():
                was_over = self._parser.is_over
                parts = self._parser.push(event.text, len(event.token_ids))
                if self._parser.is_over and not was_over:
                    self._end()
            case engine.Finished():
                self.finished = event
                parts = self._parser.finish()
        self._has_calls = self._has_calls or any(isinstance(p, ToolCall) for p in parts)
        if self._includes_reasoning:
            return parts
        return [part for part in parts if not isinstance(part, Reasoning)]
