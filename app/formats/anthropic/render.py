"""Renders events as bodies of Anthropic's API. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.delivery.framing import Framing, named
from switchyard.app.delivery.render import Body, TextBody, begins
from switchyard.app.formats.anthropic.errors import describe
from switchyard.app.formats.shapes import object_of
from switchyard.app.parts.blocks import Block, BlockClosed, BlockGrown, BlockOpened, Blocks, Step

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


@dataclass(frozen=True, slots=True)
class MessageHead:
    """The members of a message that are known before the message begins."""

    identifier: str
    model: str
    prompt_tokens: int
    stop_strings: tuple[str, ...]
    request_id: str  # a stream outlives the request's context


_by_type = named(lambda body: str(body["type"]))
EVENTS = Framing(_by_type, heartbeat=_by_type({"type": "ping"}, ""))


class MessageRender:
    """The render of one message, streamed or whole."""

    def __init__(self, head: MessageHead, answer: Answer) -> None:
        self._head = head
        self._answer = answer
        self._blocks = Blocks()
        self._has_begun = False

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[Body]:
        if not self._has_begun and begins(events):
            self._has_begun = True
            yield {"type": "message_start", "message": self.whole()}, ""
        for event in events:
            for part in self._answer.read(event):
                for step in self._blocks.add(part):
                    yield from self._bodies(step)
            if isinstance(event, engine.Finished):
                for step in self._blocks.close():
                    yield from self._bodies(step)
                end = {"delta": self._ending(), "usage": self._usage()}
                yield {"type": "message_delta", **end}, ""
                yield {"type": "message_stop"}, ""

    def text_body(self, identifier: str) -> TextBody | None:
        """Text that the returned function writes is missing from `whole`, but a stream doesn't need
        `whole`.
        """
        block = self._blocks.open
        if block is None or block.kind != "text" or not self._answer.is_plain:
            return None
        return lambda text: self._grown(block, text)

    def failed(self, error: Exception) -> Iterable[Body]:
        return [(describe(error, self._head.request_id)[1], "")]

    def add(self, events: Sequence[engine.JobEvent]) -> None:
        for event in events:
            for part in self._answer.read(event):
                self._blocks.add(part)

    def whole(self) -> dict[str, Any]:
        """The message so far."""
        return {
            "id": self._head.identifier,
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": [self._content(block) for block in self._blocks.blocks],
            **self._ending(),
            "usage": self._usage(),
        }

    def _bodies(self, step: Step) -> Iterator[Body]:
        where = {"index": step.block.index}
        match step:
            case BlockOpened(block):
                start = {"content_block": self._content(block, is_opening=True)}
                yield {"type": "content_block_start", **where, **start}, ""
            case BlockGrown(block, text):
                yield self._grown(block, text), text
            case BlockClosed(block):
                if block.kind == "reasoning":
                    signature = {"type": "signature_delta", "signature": self._signature}
                    yield {"type": "content_block_delta", **where, "delta": signature}, ""
                yield {"type": "content_block_stop", **where}, ""

    def _grown(self, block: Block, text: str) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": block.index, "delta": _delta(block, text)}

    def _content(self, block: Block, is_opening: bool = False) -> dict[str, Any]:
        match block.kind:
            case "text":
                return {"type": "text", "text": "" if is_opening else block.text}
            case "reasoning":
                thinking, signature = ("", "") if is_opening else (block.text, self._signature)
                return {"type": "thinking", "thinking": thinking, "signature": signature}
            case "call":
                return {
                    "type": "tool_use",
                    "id": block.identifier,
                    "name": block.name,
                    "input": {} if is_opening else object_of(block.text),
                }

    @property
    def _signature(self) -> str:
        """The signature of thoughts. Clients send thoughts back only with a signature, which is
        never checked.
        """
        return self._head.identifier

    def _ending(self) -> dict[str, Any]:
        """The reason why the message ended. `stop_reason` is null before the end, and if the
        message was cancelled.
        """
        reason = self._answer.finish_reason
        stop = self._answer.finished.stop_reason if self._answer.finished else None
        if reason == "stop" and stop in self._head.stop_strings:
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        return {"stop_reason": _STOP_REASONS.get(reason), "stop_sequence": None}

    def _usage(self) -> dict[str, Any]:
        """The usage. As in Anthropic's API, prompt tokens from the cache are counted separately."""
        finished = self._answer.finished
        cached_tokens = finished.cached_tokens if finished else 0
        return {
            "input_tokens": self._head.prompt_tokens - cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached_tokens,
            "output_tokens": finished.new_tokens if finished else 0,
            "output_tokens_details": {"thinking_tokens": self._answer.reasoning_tokens},
        }


def _delta(block: Block, text: str) -> dict[str, Any]:
    match block.kind:
        case "text":
            return {"type": "text_delta", "text": text}
        case "reasoning":
            return {"type": "thinking_delta", "thinking": text}
        case "call":
            return {"type": "input_json_delta", "partial_json": text}
