"""A request's wait for its jobs, as long as there is somebody to wait for. Request threads."""

import logging
import math
import time

import engine
from app.client import Client, ClientGone, Presence
from app.deadlines import Deadlines, TimedOut

logger = logging.getLogger(__name__)

LOOK = 0.25  # seconds from one look at the client to the next
LOOK_CLOSELY = 0.1  # once it may have left


class Reader:
    """Takes the events of a stream, and looks after the client and the deadlines meanwhile."""

    def __init__(
        self,
        stream: engine.Stream,
        client: Client,
        deadlines: Deadlines,
        prompt_tokens: int,
        serves_half_closed: bool,
        name: str,
    ) -> None:
        """`serves_half_closed`: whether there are writes that would tell a client that has left
        from one that only sends nothing more; else the latter counts as gone, too. `name` is the
        request's in the log.
        """
        self._stream = stream
        self._client = client
        self._deadlines = deadlines
        self._prompt_tokens = prompt_tokens
        self._new_tokens = 0
        self._serves_half_closed = serves_half_closed
        self._name = name
        self._presence: Presence = "there"
        self._next_look = -math.inf

    @property
    def is_finished(self) -> bool:
        """Whether every job's last event has been taken."""
        return self._stream.is_finished

    @property
    def is_half_closed(self) -> bool:
        """Whether the client may have left, which only a write to it can tell."""
        return self._presence == "half-closed"

    def take(self, timeout: float = math.inf) -> list[engine.JobEvent]:
        """Wait for events, at most `timeout` seconds, or until the client becomes half-closed.

        Raises ClientGone or TimedOut.
        """
        end = time.monotonic() + timeout
        while True:
            now = time.monotonic()
            self._check_deadlines(now)
            if now >= self._next_look and self._look(now):
                end = now
            wait = min(end, self._next_look, self._deadlines.next) - now
            events = self._stream.take(max(wait, 0))
            if events:
                self._note(events)
            if events or self.is_finished or now >= end:
                return events

    def close(self) -> None:
        """Cancel what has not ended."""
        self._stream.close()

    def _note(self, events: list[engine.JobEvent]) -> None:
        self._deadlines.note(events)
        for event in events:
            match event:
                case engine.Chunk():
                    self._new_tokens += len(event.token_ids)
                case engine.Failed():
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

    def _look(self, now: float) -> bool:
        """Whether the client has become half-closed since the last time."""
        before, self._presence = self._presence, self._client.look()
        if self._presence == "gone" or (self.is_half_closed and not self._serves_half_closed):
            raise ClientGone
        self._next_look = now + (LOOK_CLOSELY if self.is_half_closed else LOOK)
        return self._presence != before
