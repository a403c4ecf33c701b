"""Converts the events of one choice of a chat into parts. Runs on request threads."""

from collections.abc import Callable

from switchyard import engine
from switchyard.app.parts.choice import Choice
from switchyard.app.parts.parser import PartParser
from switchyard.app.parts.parts import Part, Reasoning, ToolCall


class Answer(Choice):
    """Converts the events of one job into parts. Ends the job after the last allowed call."""

    def __init__(
        self, parser: PartParser, end: Callable[[], object], includes_reasoning: bool = True
    ) -> None:
        """`end`: a function that ends the job early."""
        super().__init__()
        self.parts: list[Part] = []  # parts of the events passed to `add`
        self._parser = parser
        self._end = end
        self._includes_reasoning = includes_reasoning
        self._has_calls = False

    @property
    def reasoning_tokens(self) -> int:
        return self._parser.reasoning_tokens

    @property
    def is_plain(self) -> bool:
        """Whether all further text is plain, without thoughts or calls."""
        return self._parser.is_plain

    @property
    def is_in_call(self) -> bool:
        """Whether the answer is inside the arguments of a call, or has ended there."""
        return self._parser.is_in_call

    @property
    def finish_reason(self) -> str:
        """The engine's finish reason, or "tool_calls". Empty until the answer ends.

        If `end` ended the answer, the engine's finish reason is "cancelled", but this one is
        "tool_calls".
        """
        if self.finished is None:
            return ""
        is_ended = self._parser.is_over
        if self.finished.finish_reason == "stop":
            # A model that ends its answer inside a call has written the whole call.
            is_ended = self.finished.stop_reason is None or not self.is_in_call
        return "tool_calls" if self._has_calls and is_ended else self.finished.finish_reason

    def add(self, event: engine.JobEvent) -> None:
        super().add(event)
        self.parts += self.read(event)

    def read(self, event: engine.JobEvent) -> list[Part]:
        """The parts that the event completes. Streams call this method instead of `add`."""
        parts: list[Part] = []
        match event:
            case engine.Chunk():
                was_over = self._parser.is_over
                parts = self._parser.push(event.text, len(event.token_ids))
                if self._parser.is_over and not was_over:
                    self._end()
            case engine.Finished():
                self.finished = event
                is_cut = event.finish_reason == "length" or event.stop_reason is not None
                parts = self._parser.finish(is_cut)
        self._has_calls = self._has_calls or any(isinstance(p, ToolCall) for p in parts)
        if self._includes_reasoning:
            return parts
        return [part for part in parts if not isinstance(part, Reasoning)]
