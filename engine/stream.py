"""The request thread's end of its jobs."""

import queue
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from switchyard.engine.messages import (
    Chunk,
    Failed,
    Finished,
    FinishReason,
    JobEvent,
    Timings,
)


@dataclass(frozen=True, slots=True)
class Used:
    """What one job has used so far, for the application's accounts: told once its prompt has been
    looked up in the cache, and at its end. A job that never starts has computed nothing.
    """

    identifier: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int  # of the prompt, not found in the cache
    new_tokens: int
    reason: FinishReason | Literal["failed"] | None = None  # None: it goes on
    timings: Timings | None = None  # of a job that has finished


class Stream:
    """One queue for the jobs of one request: a single job, or n choices that one thread reads.

    The engine thread only ever puts, and a put never waits. Every job ends with exactly one
    `Finished` or `Failed`.
    """

    __slots__ = (
        "_batches",
        "_cancel",
        "_closed",
        "_is_polled",
        "_queue",
        "_unfinished",
        "is_patient",
        "on_use",
        "wake",
    )

    def __init__(
        self,
        identifiers: Iterable[str],
        cancel: Callable[[str], None],
        wake: Callable[[], None] | None = None,
        on_use: Callable[[Used], None] | None = None,
    ) -> None:
        """`wake`, if given, is as for `poll`. `on_use` is told what each job uses, also once the
        stream is closed, on the link's thread: it must not block.
        """
        self.wake = wake
        self.on_use = on_use
        self.is_patient = False  # whether who waits is left asleep when tokens come
        self._is_polled = wake is not None
        self._unfinished = set(identifiers)
        self._cancel = cancel
        self._closed = False
        self._queue: queue.Queue[Sequence[JobEvent]] = queue.Queue()
        self._batches = self._queue.queue

    # Link's thread

    def put(self, events: Sequence[JobEvent]) -> None:
        if self._closed:
            return  # nobody reads: don't keep what a cancelled job still emits
        is_left = self.is_patient and all(type(event) is Chunk for event in events)
        if self._is_polled or is_left:
            self._batches.append(events)  # the queue's locks are for those who wait
        else:
            self._queue.put(events)

    # Request thread

    def poll(self, wake: Callable[[], None], alone: bool) -> None:
        """Have `wake` called after puts, once for all streams that have the same, for a thread that
        reads several. It must not block. What has come before is there to be taken. `alone`:
        nobody waits in `take` from now on, which lets a put do without the queue's locks.
        """
        self.wake = wake
        self._is_polled = alone

    @property
    def is_finished(self) -> bool:
        """Whether every job's last event has been taken."""
        return not self._unfinished

    @property
    def num_behind(self) -> int:
        """Tokens that wait to be taken. Any thread."""
        batches = list(self._batches)
        return sum(len(e.token_ids) for batch in batches for e in batch if isinstance(e, Chunk))

    @property
    def has_events(self) -> bool:
        """Whether some wait to be taken."""
        return bool(self._batches)

    def take(self, timeout: float | None = None) -> list[JobEvent]:
        """Wait for events, at most `timeout` seconds; all that have piled up, in order. Who waits
        for a patient stream gets tokens with what comes next, or when the time is over.

        Empty when the time is over, and at once when every job has ended.
        """
        if self.is_finished:
            return []
        events: list[JobEvent] = []
        try:
            events += self._queue.get(timeout != 0, timeout)
            for _ in range(self._queue.qsize()):  # no more: it may fill as fast as it empties
                events += self._queue.get_nowait()
        except queue.Empty:
            pass
        self._note_ends(events)
        return events

    def take_now(self) -> Sequence[JobEvent]:
        """What has piled up. Never waits, and so needs none of the queue's locks: for a thread that
        takes a token of each of many streams.
        """
        batches = self._batches
        if not batches:
            return ()
        events: Sequence[JobEvent] = batches.popleft()
        if batches:
            events = [*events]
            for _ in range(len(batches)):  # as in `take`
                events += batches.popleft()
        self._note_ends(events)
        return events

    def _note_ends(self, events: Sequence[JobEvent]) -> None:
        for event in events:
            if isinstance(event, (Finished, Failed)):  # a union would be made anew each time
                self._unfinished.discard(event.identifier)

    def close(self) -> None:
        """Cancel what has not ended. Harmless when all has, and when called again."""
        if self._closed:
            return
        self._closed = True
        for identifier in self._unfinished:
            self._cancel(identifier)
