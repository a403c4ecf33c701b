"""Reads the events of a request's jobs, and enforces the request's deadlines. Runs on request
threads and the sender's thread.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from switchyard import engine
from switchyard.app.exceptions import TimedOut

logger = logging.getLogger(__name__)

# The error message for each kind of deadline, by code.
MEANINGS = {
    "queue_timeout": "no place in the batch was free",
    "first_token_timeout": "there was no token",
    "total_timeout": "the request did not end",
}

# For each code: the deadline by the monotonic clock, and its limit in seconds.
Deadlines = dict[str, tuple[float, float]]


def deadlines(
    queue: float, first_token: float, total: float, since: float | None = None
) -> Deadlines:
    """The deadlines of one request. Limits are in seconds; 0 means no limit. `since`: the monotonic
    time at which the limits start; None means now.
    """
    if since is None:
        since = time.monotonic()
    limits = zip(MEANINGS, (queue, first_token, total), strict=True)
    return {code: (since + seconds, seconds) for code, seconds in limits if seconds}


def next_of(ahead: Deadlines) -> float:
    """The time of the first deadline, or infinity."""
    return min((due for due, _ in ahead.values()), default=math.inf)


def check(ahead: Deadlines, now: float) -> None:
    """Raises TimedOut if the first deadline has passed."""
    if now >= next_of(ahead):
        code = min(ahead, key=lambda code: ahead[code][0])
        raise TimedOut(f"{MEANINGS[code]} within {ahead[code][1]:g} seconds", code)


@dataclass(frozen=True, slots=True)
class Submitted:
    """The submitted jobs of one request. A `Reader` takes their events; close the reader at the
    end.
    """

    stream: engine.Stream
    identifiers: Sequence[str]  # the jobs' identifiers, in order
    deadlines: Deadlines
    prompt_tokens: int
    request_id: str
    queued: Callable[[str], engine.Queued | None]  # returns the place of a waiting job in the queue
    interval: float  # seconds between two calls of `queued`

    @property
    def identifier(self) -> str:
        """The identifier of the response."""
        return self.identifiers[0].rpartition("-")[0]


class Reader:
    """Takes the events of a stream, and enforces its deadlines.

    Until the first job starts, the reader adds an event whenever a waiting job moves in the queue.
    """

    __slots__ = (
        "_deadlines",
        "_interval",
        "_late",
        "_name",
        "_new_tokens",
        "_next_deadline",
        "_next_question",
        "_prompt_tokens",
        "_queued",
        "_stream",
        "_waiting",
        "has_begun",
        "identifier",
    )

    def __init__(self, submitted: Submitted) -> None:
        self.identifier = submitted.identifier  # the response's identifier
        self.has_begun = False  # whether text has arrived; from then on only the stream is read
        self._stream = submitted.stream
        self._deadlines = submitted.deadlines  # deadlines that still apply
        self._next_deadline = next_of(submitted.deadlines)
        self._late = -math.inf  # the last time that events were taken after a deadline
        self._prompt_tokens = submitted.prompt_tokens
        self._new_tokens = 0
        self._queued = submitted.queued
        self._interval = submitted.interval
        self._next_question = time.monotonic() + submitted.interval
        self._waiting: dict[str, engine.Queued | None] = dict.fromkeys(submitted.identifiers)
        # The name of the request in the log.
        self._name = f"{self.identifier}, request {submitted.request_id}"

    @property
    def has_ended(self) -> bool:
        """Whether every job's last event has been taken."""
        return self._stream.is_finished

    @property
    def num_behind(self) -> int:
        """The number of tokens that have been generated but not taken. Thread-safe."""
        return self._stream.num_behind

    def take_events(self, timeout: float) -> Sequence[engine.JobEvent]:
        """Waits for events for at most `timeout` seconds, but not beyond the next deadline.

        If a deadline ends the wait, the next call raises TimedOut. A call after a deadline first
        returns the events that have already arrived.
        """
        now = time.monotonic()
        if now >= self._next_deadline:
            self._check_deadlines(now)
        wait = min(timeout, self._next_deadline - now) if timeout else 0
        if self._waiting:
            if now >= self._next_question and (news := self._ask(now)):
                return news
            wait = min(wait, self._next_question - now)
        events = self._stream.take(max(wait, 0))
        if events:
            self._note(events)
        return events

    def close(self) -> None:
        """Cancels the jobs that have not ended."""
        self._stream.close()

    def _ask(self, now: float) -> list[engine.JobEvent]:
        """An event for each waiting job that has moved in the queue."""
        news: list[engine.JobEvent] = []
        self._next_question = now + self._interval
        for identifier, before in self._waiting.items():
            queued = self._queued(identifier)
            if queued is not None and queued != before:
                self._waiting[identifier] = queued
                news.append(queued)
        return news

    def _note(self, events: Sequence[engine.JobEvent]) -> None:
        for event in events:
            match event:
                case engine.Started():
                    self._waiting.clear()
                    self._meet("queue_timeout")
                case engine.PutBack() if not self.has_begun:
                    self._waiting[event.identifier] = None
                case engine.Chunk():
                    self._new_tokens += len(event.token_ids)
                    if not self.has_begun:
                        self.has_begun = True
                        self._waiting.clear()
                        self._meet("queue_timeout", "first_token_timeout")
                case engine.Finished():
                    self._waiting.clear()
                    self._meet("queue_timeout", "first_token_timeout")
                case engine.Failed():
                    self._waiting.clear()
                    logger.warning("%s: %s", self._name, event.error)

    def _meet(self, *codes: str) -> None:
        """Removes these deadlines. Once one choice has met a deadline, the whole request has met
        it.
        """
        if not self._deadlines.keys().isdisjoint(codes):
            left = self._deadlines.items()
            self._deadlines = {code: limit for code, limit in left if code not in codes}
            self._next_deadline = next_of(self._deadlines)

    def _check_deadlines(self, now: float) -> None:
        """Raises TimedOut if a deadline has passed. A late reader may first take the events that
        arrived in the meantime, but only once.
        """
        if self._late < self._next_deadline and self._stream.has_events:
            self._late = now
            return
        try:
            check(self._deadlines, now)
        except TimedOut as error:
            logger.warning("%s: %s", self._name, error)
            error.usage = {
                "prompt_tokens": self._prompt_tokens,
                "completion_tokens": self._new_tokens,
                "total_tokens": self._prompt_tokens + self._new_tokens,
            }
            raise
