"""How long a request may wait: for its turn, for its first token, for its end."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard import engine
from switchyard.app.exceptions import TimedOut


@dataclass(frozen=True, slots=True)
class Deadline:
    time: float  # by the monotonic clock
    code: str
    message: str


class Deadlines:
    """Of one request. In seconds; 0 for none."""

    __slots__ = ("_ahead", "_has_early", "next")

    def __init__(
        self, queue: float, first_token: float, total: float, since: float | None = None
    ) -> None:
        """`since`, by the monotonic clock; None for now."""
        if since is None:
            since = time.monotonic()
        self._ahead = [
            Deadline(since + seconds, code, f"{message} within {seconds:g} seconds")
            for seconds, code, message in (
                (queue, "queue_timeout", "no place in the batch was free"),
                (first_token, "first_token_timeout", "there was no token"),
                (total, "total_timeout", "the request did not end"),
            )
            if seconds
        ]
        self._has_early = True  # whether there may be some that events meet
        self.next = min((deadline.time for deadline in self._ahead), default=math.inf)

    def note(self, events: Sequence[engine.JobEvent]) -> None:
        """Forget the deadlines that these events meet: the first of any choice counts."""
        if not self._has_early:
            return
        met: set[str] = set()
        for event in events:
            match event:
                case engine.Started():
                    met |= {"queue_timeout"}
                case engine.Chunk() | engine.Finished():
                    met |= {"queue_timeout", "first_token_timeout"}
                    self._has_early = False
        if any(deadline.code in met for deadline in self._ahead):
            self._ahead = [deadline for deadline in self._ahead if deadline.code not in met]
            self.next = min((deadline.time for deadline in self._ahead), default=math.inf)

    def check(self, now: float) -> None:
        """Raises TimedOut."""
        if now >= self.next:
            first = min(self._ahead, key=lambda deadline: deadline.time)
            raise TimedOut(first.message, first.code)
