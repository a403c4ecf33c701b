"""The session of one WebSocket, with all its generations. Runs on its own request thread."""

import itertools
import logging
import math
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import flask

from switchyard import engine
from switchyard.app.chat.answer import Answer
from switchyard.app.delivery import submit as generation
from switchyard.app.delivery.reader import Reader
from switchyard.app.errors import describe
from switchyard.app.exceptions import BadRequest, ClientGone, TimedOut
from switchyard.app.formats.shapes import delta, ending, usage
from switchyard.app.formats.text.answer import read
from switchyard.app.formats.websocket import parse
from switchyard.app.formats.websocket.connection import Connection
from switchyard.app.leases import model_of, release
from switchyard.app.operations.account import Account
from switchyard.app.parts.parts import Part, Text
from switchyard.app.request import neutral
from switchyard.app.services import services

logger = logging.getLogger(__name__)

MAX_GENERATIONS = 32  # concurrent generations on one connection
TICK = 0.25  # seconds between two checks for deadlines and for a drain

NORMAL, GOING_AWAY, INTERNAL_ERROR = 1000, 1001, 1011  # RFC 6455, section 7.4.1


@dataclass(frozen=True, slots=True)
class Running:
    identifier: str  # the identifier of the job
    reader: Reader
    model: engine.Engine
    answer: Answer | None  # only for a chat
    ignored: str  # names of parameters without effect
    account: Account | None

    def close(self) -> None:
        self.reader.close()
        if self.account is not None:
            self.account.answered()


class Session:
    def __init__(self, connection: Connection, timeout: float) -> None:
        """`timeout`: seconds without a running generation after which the session ends; 0 means no
        limit.
        """
        self._connection = connection
        self._timeout = timeout or math.inf
        self._last_work = time.monotonic()
        # Running generations, by the client's identifiers.
        self._running: dict[parse.Identifier, Running] = {}

    def run(self) -> None:
        """Serves until the client leaves or is idle for too long, or, during a drain, until all
        generations have ended.
        """
        code, reason = GOING_AWAY, "the server is shutting down"
        try:
            while not self._has_drained():
                self._connection.wait(TICK)
                for data in self._connection.messages():
                    self._receive(data)
                self._go_on()
                if self._is_idle():
                    code, reason = NORMAL, "idle"
                    break
        except ClientGone:
            pass
        except Exception:
            logger.exception("a WebSocket failed")
            code, reason = INTERNAL_ERROR, "the server failed in an unexpected way"
        finally:
            for running in self._running.values():
                running.close()
            self._connection.close(code, reason)

    def _go_on(self) -> None:
        """Sends the new events of all generations. Raises ClientGone."""
        for identifier in list(self._running):
            self._forward(identifier)
        self._connection.keep_alive()

    def _has_drained(self) -> bool:
        if self._running or not services().models.is_over:
            return False
        self._send_error(None, engine.Draining("the server is shutting down", 10.0))
        return True

    def _is_idle(self) -> bool:
        """Whether the session has been idle for too long. If so, informs the client."""
        now = time.monotonic()
        if self._running:
            self._last_work = now
        if now - self._last_work < self._timeout:
            return False
        message = f"no generation has run for {self._timeout:g} seconds"
        self._send_error(None, TimedOut(message, "websocket_timeout"))
        return True

    def _receive(self, data: str | bytes) -> None:
        """Handles a message. Each message gets a response or an error."""
        identifier: parse.Identifier | None = None
        try:
            with generation.inside(services().gate, len(data), services().settings):
                neutral.begin(services().settings.takes_unknown)
                message = parse.message(data, services().settings.max_body_bytes)
                envelope = parse.envelope(message)
                if envelope.type == "cancel":
                    self._cancel(envelope.id)
                    return
                if envelope.id in self._running:
                    raise BadRequest(f"id {envelope.id!r} is already in use", "id")
                identifier = envelope.id  # from here on, an error ends only this generation
                request = parse.generate(message)
                with services().guard.generation(flask.request.environ) as account:
                    self._running[identifier] = self._start(request, account)
        except ClientGone:
            raise
        except Exception as error:
            self._send_error(identifier, error)
        finally:
            release()

    def _start(
        self, request: parse.SpokenText | parse.SpokenChat, account: Account | None
    ) -> Running:
        if len(self._running) >= MAX_GENERATIONS:
            raise engine.Full(
                f"this connection already runs {MAX_GENERATIONS} generations, which is the maximum"
            )
        request = request.with_preset(services().settings.presets)
        model = model_of(request.model, self._go_on)
        identifier = f"ws-{uuid.uuid4().hex}-0"
        answer, fit = None, None
        with generation.names_of(request):
            if isinstance(request, parse.SpokenText):
                [prompt] = read(request, model)
                token_ids = prompt.token_ids
            else:
                chat = services().prompts(model).prepare(request)
                token_ids, fit = chat.token_ids, chat.fit
                end = partial(model.cancel, identifier)
                answer = Answer(chat.parser(), end, request.include_reasoning)
            submitted = generation.submit(
                request,
                model,
                [token_ids],
                [identifier],
                is_streamed=True,
                settings=services().settings,
                fit=fit,
                wake=self._connection.wake,
            )
        return Running(identifier, Reader(submitted), model, answer, neutral.told(), account)

    def _cancel(self, identifier: parse.Identifier) -> None:
        """Cancels a generation. The client then gets an event for the generation's end."""
        running = self._running.get(identifier)
        if running is None:
            raise BadRequest(f"id {identifier!r} has no running generation", "id", "unknown_id")
        running.model.cancel(running.identifier)

    def _forward(self, identifier: parse.Identifier) -> None:
        """Sends the new events of one generation. Raises ClientGone."""
        running = self._running[identifier]
        try:
            events = running.reader.take_events(0)
        except TimedOut as error:
            self._end(identifier)
            self._send_error(identifier, error)
            return
        for body in _bodies(running.answer, events):
            self._connection.send({"type": "chunk", "id": identifier, **body})
        for event in events:
            match event:
                case engine.Finished():
                    self._end(identifier)
                    body = _end_of(event, running.answer)
                    if running.ignored:
                        body["ignored"] = running.ignored
                    self._connection.send({"type": "end", "id": identifier, **body})
                case engine.Failed():
                    self._end(identifier)
                    self._send_error(identifier, event.error)

    def _end(self, identifier: parse.Identifier) -> None:
        self._running.pop(identifier).close()

    def _send_error(self, identifier: parse.Identifier | None, error: Exception) -> None:
        kind, body = describe(error)
        more: dict[str, Any] = {"status": kind.status, **body}
        if retry_after := kind.headers.get("Retry-After"):
            more["retry_after"] = int(retry_after)
        self._connection.send({"type": "error", "id": identifier, **more})


def _bodies(answer: Answer | None, events: Sequence[engine.JobEvent]) -> Iterator[dict[str, Any]]:
    """The bodies of new events. Consecutive texts are joined."""
    parts: Iterator[Part] = (
        part
        for event in events
        for part in (_text_of(event) if answer is None else answer.read(event))
    )
    for is_text, group in itertools.groupby(parts, lambda part: isinstance(part, Text)):
        if is_text:
            yield {"text": "".join(part.text for part in group if isinstance(part, Text))}
        else:
            yield from map(delta, group)


def _text_of(event: engine.JobEvent) -> list[Part]:
    return [Text(event.text)] if isinstance(event, engine.Chunk) and event.text else []


def _end_of(finished: engine.Finished, answer: Answer | None) -> dict[str, Any]:
    body = ending(finished)
    if answer is None:
        return {**body, "usage": usage([finished], 1)}
    reason = {"finish_reason": answer.finish_reason}
    return {**body, **reason, "usage": usage([finished], 1, answer.reasoning_tokens)}
