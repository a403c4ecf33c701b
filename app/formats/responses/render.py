"""Renders events as bodies of OpenAI's Responses API. Pure."""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.delivery.framing import Framing, named
from switchyard.app.delivery.render import Body, begins
from switchyard.app.errors import describe
from switchyard.app.formats.logprobs import TokenNames, token_logprobs
from switchyard.app.parts.blocks import Block, BlockClosed, BlockGrown, BlockOpened, Blocks, Step


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The members of a response that never change."""

    identifier: str
    created: int  # Unix seconds
    model: str
    echo: dict[str, Any]  # members that repeat the request


EVENTS = Framing(named(lambda body: str(body["type"])))

_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}


class ResponseRender:
    """The render of one response, streamed or whole."""

    def __init__(self, head: ResponseHead, answer: Answer, names: TokenNames | None) -> None:
        """`names`: the names of tokens in logprobs; None without logprobs."""
        self._head = head
        self._answer = answer
        self._names = names
        self._pending: list[dict[str, Any]] = []  # logprobs of tokens whose text hasn't arrived yet
        # The logprobs of blocks of text, by block.
        self._logprobs: dict[int, list[dict[str, Any]]] = {}
        self._blocks = Blocks()
        self._identifiers: list[str] = []  # the identifiers of items, one for each block
        self._sequence_number = -1
        self._status = "in_progress"
        self._completed: int | None = None
        self._error: dict[str, str] | None = None

    def __call__(self, events: Sequence[engine.JobEvent]) -> Iterator[Body]:
        if begins(events):
            yield from self._opening()
        for event in events:
            for step in self._steps(event):
                yield from self._bodies(step)
            if isinstance(event, engine.Finished):
                kind = "completed" if self._status == "completed" else "incomplete"
                yield self._event(f"response.{kind}", response=self.whole())

    def text_body(self, identifier: str) -> None:
        """Returns None, because each body has its own sequence number."""

    def failed(self, error: Exception) -> Iterator[Body]:
        yield from self._opening()
        self._end("failed")
        self._blocks.close()
        kind, body = describe(error)
        # OpenAI has no other code for errors that the request causes.
        code = "invalid_prompt" if kind.status == 400 else "server_error"
        self._error = {"code": code, "message": body["error"]["message"]}
        yield self._event("response.failed", response=self.whole())

    def add(self, events: Sequence[engine.JobEvent]) -> None:
        for event in events:
            for step in self._steps(event):
                if isinstance(step, BlockGrown):
                    self._take_logprobs(step.block)

    def whole(self) -> dict[str, Any]:
        """The response so far."""
        is_limited = self._answer.finish_reason == "length"
        return {
            "id": self._head.identifier,
            "object": "response",
            "created_at": self._head.created,
            "completed_at": self._completed,
            "status": self._status,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if is_limited else None,
            "model": self._head.model,
            "output": [self._item(block) for block in self._blocks.blocks],
            "usage": self._usage(),
            **self._head.echo,
        }

    def _steps(self, event: engine.JobEvent) -> Iterator[Step]:
        """The steps of an event. The last event closes the last block."""
        if self._names is not None and isinstance(event, engine.Chunk):
            self._pending += token_logprobs(event.logprobs or (), self._names)
        for part in self._answer.read(event):
            yield from self._blocks.add(part)
        if not isinstance(event, engine.Finished):
            return
        block = self._blocks.open
        if self._pending and block is not None and block.kind == "text":
            yield BlockGrown(block, "")  # tokens whose text is not part of the answer
        self._end(self._final_status())
        yield from self._blocks.close()

    def _take_logprobs(self, block: Block) -> list[dict[str, Any]]:
        """The logprobs of the tokens that a block has newly gained. Only text blocks have
        logprobs.
        """
        taken, self._pending = self._pending, []
        if block.kind != "text":
            return []
        self._logprobs.setdefault(block.index, []).extend(taken)
        return taken

    def _opening(self) -> Iterator[Body]:
        if self._sequence_number < 0:
            yield self._event("response.created", response=self.whole())
            yield self._event("response.in_progress", response=self.whole())

    def _final_status(self) -> str:
        match self._answer.finish_reason:
            case "cancelled":
                return "cancelled"
            case "length":
                return "incomplete"
            case "stop" if self._answer.is_in_call:
                return "incomplete"
        return "completed"

    def _end(self, status: str) -> None:
        self._status = status
        if status == "completed":
            self._completed = int(time.time())

    def _bodies(self, step: Step) -> Iterator[Body]:
        block = step.block
        match step:
            case BlockOpened():
                item = self._item(block, is_opening=True)
                yield self._event("response.output_item.added", **_at(block), item=item)
                if block.kind != "call":
                    yield self._part("response.content_part.added", block, is_opening=True)
            case BlockGrown(_, text):
                yield self._piece(block, text)
            case BlockClosed():
                yield from self._closing(block)

    def _piece(self, block: Block, text: str) -> Body:
        logprobs = self._take_logprobs(block)
        match block.kind:
            case "text":
                name, more = "output_text.delta", {"content_index": 0, "logprobs": logprobs}
            case "reasoning":
                name, more = "reasoning_text.delta", {"content_index": 0}
            case "call":
                name, more = "function_call_arguments.delta", {}
        where = self._where(block)
        body, _ = self._event(f"response.{name}", **where, **more, delta=text)
        return body, text if block.kind == "text" else ""

    def _closing(self, block: Block) -> Iterator[Body]:
        where = self._where(block)
        match block.kind:
            case "call":
                name, arguments = "response.function_call_arguments.done", block.text
                yield self._event(name, **where, name=block.name, arguments=arguments)
            case "text":
                logprobs = self._logprobs.get(block.index, [])
                more = {"content_index": 0, "logprobs": logprobs, "text": block.text}
                yield self._event("response.output_text.done", **where, **more)
            case "reasoning":
                more = {"content_index": 0, "text": block.text}
                yield self._event("response.reasoning_text.done", **where, **more)
        if block.kind != "call":
            yield self._part("response.content_part.done", block)
        yield self._event("response.output_item.done", **_at(block), item=self._item(block))

    def _part(self, kind: str, block: Block, is_opening: bool = False) -> Body:
        part = self._content(block, is_opening)
        return self._event(kind, **self._where(block), content_index=0, part=part)

    def _where(self, block: Block) -> dict[str, Any]:
        return {"item_id": self._identifier_of(block), **_at(block)}

    def _identifier_of(self, block: Block) -> str:
        for other in self._blocks.blocks[len(self._identifiers) :]:
            self._identifiers.append(f"{_PREFIXES[other.kind]}_{uuid.uuid4().hex}")
        return self._identifiers[block.index]

    def _item(self, block: Block, is_opening: bool = False) -> dict[str, Any]:
        is_last = block.index == len(self._blocks.blocks) - 1
        status = "completed"
        if self._blocks.open is block:
            status = "in_progress"
        elif is_last and self._status in ("incomplete", "cancelled", "failed"):
            is_whole = block.kind == "call" and not self._answer.is_in_call
            status = "completed" if is_whole else "incomplete"
        item = {"id": self._identifier_of(block), "status": status}
        has_content = bool(block.pieces) and not is_opening
        match block.kind:
            case "text":
                content = [self._content(block)] if has_content else []
                return {**item, "type": "message", "role": "assistant", "content": content}
            case "reasoning":
                content = [self._content(block)] if has_content else []
                return {**item, "type": "reasoning", "summary": [], "content": content}
            case "call":
                return {
                    **item,
                    "type": "function_call",
                    "call_id": block.identifier,
                    "name": block.name,
                    "arguments": block.text if has_content else "",
                }

    def _content(self, block: Block, is_opening: bool = False) -> dict[str, Any]:
        text = "" if is_opening else block.text
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = [] if is_opening else self._logprobs.get(block.index, [])
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _usage(self) -> dict[str, Any] | None:
        finished = self._answer.finished
        if finished is None:
            return None
        return {
            "input_tokens": finished.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": finished.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": finished.new_tokens,
            "output_tokens_details": {"reasoning_tokens": self._answer.reasoning_tokens},
            "total_tokens": finished.prompt_tokens + finished.new_tokens,
        }

    def _event(self, kind: str, **more: Any) -> Body:
        self._sequence_number += 1
        return {"type": kind, "sequence_number": self._sequence_number, **more}, ""


def _at(block: Block) -> dict[str, Any]:
    return {"output_index": block.index}
