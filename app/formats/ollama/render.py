"""Renders events as bodies of Ollama's API. Pure, except that `Answer` may end a job."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.delivery.framing import JSON_LINES, Framing
from switchyard.app.delivery.render import Body, TextBody
from switchyard.app.formats.ollama.errors import describe
from switchyard.app.formats.ollama.times import in_nanoseconds
from switchyard.app.formats.shapes import object_of
from switchyard.app.parts.blocks import Block, BlockClosed, BlockGrown, Blocks, Step

LEAST = -9999.0  # stands for minus infinity, which JSON doesn't have

# Ollama's clients parse each line, so the heartbeat is a space before the next line.
LINES = Framing(JSON_LINES.frame, JSON_LINES.mimetype, heartbeat=b" ")


@dataclass(frozen=True, slots=True)
class OllamaHead:
    """The members of an answer that are known before the answer begins."""

    model: str
    created_at: str  # the same for all bodies, so that consecutive frames differ only in their text
    load_seconds: float
    is_chat: bool
    piece: Callable[[int], bytes]  # returns the bytes that a token adds to the text
    has_logprobs: bool = False
    context: tuple[int, ...] | None = None  # the prompt, if the answer contains its tokens
    end_token_ids: tuple[int, ...] = ()  # the tokens that end a turn in `context`


class OllamaRender:
    """The render of one answer, streamed or whole."""

    def __init__(self, head: OllamaHead, answer: Answer) -> None:
        self._head = head
        self._answer = answer
        self._blocks = Blocks()
        self._token_ids: list[int] = []
        self._num_calls = 0  # number of calls sent so far
        self._logprobs: list[engine.TokenLogprob] = []  # logprobs that have not been sent yet

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[Body]:
        for event in events:
            for step in self._steps(event):
                body, text = self._body_of(step)
                if body:
                    yield {**self._message(**body), **self._told()}, text
            if isinstance(event, engine.Finished):
                yield {**self._message(), **self._told(), **self._end(event)}, ""

    def text_body(self, identifier: str) -> TextBody | None:
        head, block = self._head, self._blocks.open
        if head.has_logprobs or head.context is not None or not self._answer.is_plain:
            return None
        if block is None or block.kind != "text":
            return None
        return lambda text: self._message(text)

    def failed(self, error: Exception) -> Iterable[Body]:
        return [(describe(error)[1], "")]

    def add(self, events: Sequence[engine.JobEvent]) -> None:
        for event in events:
            self._steps(event)

    def whole(self) -> dict[str, Any]:
        finished, blocks = self._answer.finished, self._blocks.blocks
        assert finished is not None
        calls = [_call(block, i) for i, block in enumerate(b for b in blocks if b.kind == "call")]
        body = self._message(_texts(blocks, "text"), _texts(blocks, "reasoning"), calls)
        return {**body, **self._told(), **self._end(finished)}

    def _steps(self, event: engine.JobEvent) -> list[Step]:
        if isinstance(event, engine.Chunk):
            self._token_ids += event.token_ids
            self._logprobs += event.logprobs or ()
        steps = [step for part in self._answer.read(event) for step in self._blocks.add(part)]
        return [*steps, *self._blocks.close()] if isinstance(event, engine.Finished) else steps

    def _body_of(self, step: Step) -> tuple[dict[str, Any], str]:
        """Arguments for `_message`, made from a step, and the step's text. A call is sent whole."""
        match step:
            case BlockGrown(Block(kind="text"), text):
                return {"text": text}, text
            case BlockGrown(Block(kind="reasoning"), text):
                return {"thinking": text}, ""
            case BlockClosed(Block(kind="call") as block):
                self._num_calls += 1
                return {"calls": [_call(block, self._num_calls - 1)]}, ""
        return {}, ""

    def _message(
        self, text: str = "", thinking: str = "", calls: Sequence[Any] = ()
    ) -> dict[str, Any]:
        head = self._head
        thoughts = {"thinking": thinking} if thinking else {}
        body: dict[str, Any] = {"model": head.model, "created_at": head.created_at}
        if not head.is_chat:
            return {**body, "response": text, **thoughts, "done": False}
        message: dict[str, Any] = {"role": "assistant", "content": text, **thoughts}
        if calls:
            message["tool_calls"] = calls
        return {**body, "message": message, "done": False}

    def _told(self) -> dict[str, Any]:
        """The logprobs of the tokens since the last body."""
        told, self._logprobs = self._logprobs, []
        if not (self._head.has_logprobs and told):
            return {}
        return {
            "logprobs": [
                {
                    **self._token(one.token_id, one.logprob),
                    "top_logprobs": [self._token(*pair) for pair in one.top],
                }
                for one in told
            ]
        }

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        piece = self._head.piece(token_id)
        text = piece.decode("utf-8", "replace")
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(piece)}

    def _end(self, finished: engine.Finished) -> dict[str, Any]:
        reason = self._answer.finish_reason
        times = finished.timings
        total = self._head.load_seconds + times.queue + times.prefill + times.decode
        return {
            "done": True,
            "done_reason": "stop" if reason == "tool_calls" else reason,
            **self._context(finished),
            "total_duration": in_nanoseconds(total),
            "load_duration": in_nanoseconds(self._head.load_seconds),
            "prompt_eval_count": finished.prompt_tokens,
            "prompt_eval_duration": in_nanoseconds(times.prefill),
            "eval_count": finished.new_tokens,
            "eval_duration": in_nanoseconds(times.decode),
        }

    def _context(self, finished: engine.Finished) -> Mapping[str, list[int]]:
        """The tokens so far, for a request that continues from this answer."""
        if self._head.context is None:
            return {}
        is_over = finished.finish_reason == "stop" and finished.stop_reason is None
        end = self._head.end_token_ids if is_over else ()
        return {"context": [*self._head.context, *self._token_ids, *end]}


def _texts(blocks: Iterable[Block], kind: str) -> str:
    return "".join(block.text for block in blocks if block.kind == kind)


def _call(block: Block, index: int) -> dict[str, Any]:
    function = {"index": index, "name": block.name, "arguments": object_of(block.text)}
    return {"id": block.identifier, "function": function}
