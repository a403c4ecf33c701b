"""A request's wait for its jobs, as long as there is somebody to wait for. Request threads."""

import logging
import math
import time
from collections.abc import Callable, Sequence

from switchyard import engine
from switchyard.app.delivery.deadlines import Deadlines
from switchyard.app.delivery.watch import Watch
from switchyard.app.exceptions import TimedOut

logger = logging.getLogger(__name__)


class Reader:
    """Takes the events of a stream, and looks after the client and the deadlines meanwhile."""

    __slots__ = (
        "_deadlines",
        "_interval",
        "_name",
        "_new_tokens",
        "_next_question",
        "_prompt_tokens",
        "_queued",
        "_stream",
        "_waiting",
        "has_begun",
        "identifier",
        "watch",
    )

    def __init__(
        self,
        stream: engine.Stream,
        watch: Watch,
        deadlines: Deadlines,
        prompt_tokens: int,
        identifiers: Sequence[str],
        request_id: str,
        queued: Callable[[str], engine.Queued | None],
        interval: float,
    ) -> None:
        """`identifiers` of the jobs. `queued` tells of one where it waits: asked every `interval`
        seconds until one has started, what is new becomes an event.
        """
        self.identifier = identifiers[0].rpartition("-")[0]  # the response's
        self.watch: Watch | None = watch  # None: others look after those who read
        self.has_begun = False  # whether there has been text: nothing but the stream is asked then
        self._stream = stream
        self._deadlines = deadlines
        self._prompt_tokens = prompt_tokens
        self._new_tokens = 0
        self._queued = queued
        self._interval = interval
        self._next_question = time.monotonic() + interval
        self._waiting: dict[str, engine.Queued | None] = dict.fromkeys(identifiers)
        self._name = f"{self.identifier}, request {request_id}"  # in the log

    @property
    def is_finished(self) -> bool:
        """Whether every job's last event has been taken."""
        return self._stream.is_finished

    def is_due(self, now: float) -> bool:
        """Whether `take` wouldn't wait."""
        return self._stream.has_events or now >= self._deadlines.next

    def notify(self, wake: Callable[[], None], alone: bool) -> None:
        """Have `wake` called when there is news, from now on. It must not block. `alone`: no other
        thread takes any.
        """
        self._stream.poll(wake, alone)

    def be_patient(self) -> None:
        """Have tokens wait for the end, or a look at the client, to be taken. From now on."""
        self._stream.is_patient = True

    def take(self, timeout: float = math.inf) -> Sequence[engine.JobEvent]:
        """Wait for events, at most `timeout` seconds, or until the client becomes half-closed.

        Raises TimedOut, or ClientGone.
        """
        if self.watch is None:
            return self._take(timeout)
        return self.watch.wait(self._take, lambda: self.is_finished, timeout)

    def take_now(self, now: float) -> Sequence[engine.JobEvent]:
        """What has come, once it `has_begun`. Never waits, and looks after no client. Raises
        TimedOut.
        """
        if now >= self._deadlines.next:
            self._check_deadlines(now)
        events = self._stream.take_now()
        if len(events) == 1 and isinstance(events[0], engine.Chunk):  # nearly always
            self._new_tokens += len(events[0].token_ids)
        elif events:
            self._note(events)
        return events

    def close(self) -> None:
        """Cancel what has not ended."""
        self._stream.close()

    def _take(self, timeout: float) -> list[engine.JobEvent]:
        """Nothing also when a deadline has come, which is told the next time."""
        now = time.monotonic()
        if now >= self._deadlines.next:
            self._check_deadlines(now)
        wait = min(timeout, self._deadlines.next - now) if timeout else 0
        if self._waiting:
            if now >= self._next_question and (news := self._ask(now)):
                return news
            wait = min(wait, self._next_question - now)
        events = self._stream.take(max(wait, 0))
        if events:
            self._note(events)
        return events

    def _ask(self, now: float) -> list[engine.JobEvent]:
        """Where the jobs stand that wait, if they have moved."""
        news: list[engine.JobEvent] = []
        self._next_question = now + self._interval
        for identifier, before in self._waiting.items():
            queued = self._queued(identifier)
            if queued is not None and queued != before:
                self._waiting[identifier] = queued
                news.append(queued)
        return news

    def _note(self, events: Sequence[engine.JobEvent]) -> None:
        self._deadlines.note(events)
        for event in events:
            match event:
                case engine.Started() | engine.Finished():
                    self._waiting.clear()
                case engine.PutBack() if not self.has_begun:
                    self._waiting[event.identifier] = None
                case engine.Chunk():
                    self.has_begun = True
                    self._waiting.clear()
                    self._new_tokens += len(event.token_ids)
                case engine.Failed():
                    self._waiting.clear()
                    logger.warning("%s: %s", self._name, event.error)

    def _check_deadlines(self, now: float) -> None:
        try:
            self._deadlines.check(now)
        except TimedOut as error:
            logger.warning("%s: %s", self._name, error)
            error.usage = {
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": self._new_tokens,
                "total_tokens": self._prompt_tokens + self._new_tokens,
            }
            raise
