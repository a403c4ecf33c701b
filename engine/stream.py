"""A request thread's access to its jobs."""

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
    """The tokens that the model has computed for one job so far, for the application's accounts.

    A guided job has two prompts, and computes each new token twice. The usage is reported after the
    prompts have been looked up in the cache, whenever the job has used up its allowed tokens, and
    when the job ends. A job that never starts has computed nothing.
    """

    identifier: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int  # prompt tokens not found in the cache
    new_tokens: int  # sampled, including those that the answer leaves out after a loop
    reason: FinishReason | Literal["failed"] | None = None  # None: the job has not ended
    timings: Timings | None = None  # of a job that has finished
    num_sequences: int = 1  # 2 for a guided job


# Takes a report. Returns the number of new tokens that the job's answer may have; None: no limit.
OnUse = Callable[[Used], int | None]


class Stream:
    """A single queue for the events of one request's jobs, which one thread reads.

    The engine thread only puts events into the queue, which never blocks. Every job ends with
    exactly one `Finished` or `Failed`.
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
        on_use: OnUse | None = None,
    ) -> None:
        """`wake`: see `poll`. `on_use`: called with each job's usage, even after `close`. It runs
        on the link's thread, so it must not block. A job that may generate no more tokens ends with
        finish_reason "length" and stop_reason "quota".
        """
        self.wake = wake
        self.on_use = on_use
        self.is_patient = False  # whether tokens alone don't wake the reader
        self._is_polled = wake is not None
        self._unfinished = set(identifiers)
        self._cancel = cancel
        self._closed = False
        self._queue: queue.Queue[Sequence[JobEvent]] = queue.Queue()
        self._batches = self._queue.queue

    # Link's thread

    def put(self, events: Sequence[JobEvent]) -> None:
        if self._closed:
            return  # no reader is left: a cancelled job's events are dropped
        is_left = self.is_patient and all(type(event) is Chunk for event in events)
        if self._is_polled or is_left:
            self._batches.append(events)  # without the queue's locks: no reader waits for them
        else:
            self._queue.put(events)

    # Request thread

    def poll(self, wake: Callable[[], None], alone: bool) -> None:
        """Register `wake`, which is called after events are put and must not block. Streams that
        have the same `wake` and are read by one thread share one call. Events put earlier can be
        taken at once. `alone`: whether no thread will wait in `take` from now on, so that putting
        events can skip the queue's locks.
        """
        self.wake = wake
        self._is_polled = alone

    @property
    def is_finished(self) -> bool:
        """Whether every job's last event has been taken."""
        return not self._unfinished

    @property
    def num_behind(self) -> int:
        """The number of tokens that wait to be taken. Can be read on any thread."""
        batches = list(self._batches)
        return sum(len(e.token_ids) for batch in batches for e in batch if isinstance(e, Chunk))

    @property
    def has_events(self) -> bool:
        """Whether events wait to be taken."""
        return bool(self._batches)

    def take(self, timeout: float | None = None) -> list[JobEvent]:
        """Wait at most `timeout` seconds for events, and return all that have accumulated, in
        order. On a patient stream, tokens do not end the wait; they are returned with the next
        other event, or at the timeout. Returns an empty list if no events arrive before the
        timeout, and at once if every job has ended.
        """
        if self.is_finished:
            return []
        events: list[JobEvent] = []
        try:
            events += self._queue.get(timeout != 0, timeout)
            for _ in range(self._queue.qsize()):  # bounded: it may fill as fast as it empties
                events += self._queue.get_nowait()
        except queue.Empty:
            pass
        self._note_ends(events)
        return events

    def take_now(self) -> Sequence[JobEvent]:
        """Returns the events that have accumulated. Never waits, so it skips the queue's locks.
        Intended for a thread that takes a token from each of many streams.
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
            if isinstance(event, (Finished, Failed)):  # `isinstance` with a union is slower
                self._unfinished.discard(event.identifier)

    def close(self) -> None:
        """Cancel the jobs that have not ended. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for identifier in self._unfinished:
            self._cancel(identifier)
