"""What a request has been answered so far. Request threads and the sender."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from switchyard import engine
from switchyard.app.delivery.reader import Reader, Submitted
from switchyard.app.delivery.watch import LOOK


class Writer(Protocol):
    """Turns events into frames: the pieces of a body that are not divided any more."""

    @property
    def mimetype(self) -> str: ...

    @property
    def is_streamed(self) -> bool:
        """Whether frames are sent as they come; else the body comes in one piece."""

    @property
    def heartbeat(self) -> bytes:
        """What keeps the connection of a stream open."""

    @property
    def comment(self) -> bytes:
        """How far the answer is, for a client that waits for its first frame; of no consequence."""

    @property
    def is_numbered(self) -> bool:
        """Whether frames say which they are."""

    def write(self, events: Sequence[engine.JobEvent]) -> list[bytes]: ...

    def end(self) -> list[bytes]:
        """Behind the last event, if all jobs have finished."""

    def fail(self, error: Exception) -> list[bytes]:
        """Instead, if one has not."""


class Transcript(Reader):
    """The frames of one answer, for one client: each is forgotten as it is taken."""

    __slots__ = ("_frames", "_is_empty", "error", "has_nothing_but_error", "is_finished", "writer")

    def __init__(self, submitted: Submitted, writer: Writer) -> None:
        super().__init__(submitted)
        self.writer = writer
        self.is_finished = False  # whether no more frames come
        self.error: Exception | None = None  # why not
        self.has_nothing_but_error = False
        self._frames: list[bytes] = []
        self._is_empty = True  # whether there has never been a frame

    def notify(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there may be new frames, from now on. It must not block."""
        self._stream.poll(wake, alone=True)

    def is_read(self, position: int) -> bool:
        """Whether nothing is left for a client that has taken so many frames."""
        return self.is_finished and not self._frames

    def take(self, position: int, timeout: float) -> list[bytes]:
        """Wait for the frames from `position` on, at most `timeout` seconds, unless that was all.
        Where none are kept these are all that there are.
        """
        if not self.is_finished:
            self._drive(timeout)
        frames, self._frames = self._frames, []
        return frames

    def take_now(self, position: int, now: float) -> list[bytes]:
        """Likewise, once it `has_begun`, without any wait."""
        try:
            if now >= self._next_deadline:
                self._check_deadlines(now)
            events = self._stream.take_now()
            if len(events) == 1 and isinstance(events[0], engine.Chunk):  # nearly always
                self._new_tokens += len(events[0].token_ids)
                return self.writer.write(events)
            if events:
                self._note(events)
                self._write_down(events)
        except Exception as reason:  # TimedOut, or a fault of ours
            self._write_down((), reason)
        frames, self._frames = self._frames, []
        return frames

    def leave(self) -> None:
        """The client takes nothing more: what has not ended is cancelled."""
        self.is_finished = True
        self.close()

    def _drive(self, timeout: float) -> None:
        """Wait for events, and write them down."""
        try:
            events = self.take_events(timeout)
        except Exception as reason:  # TimedOut, or a fault of ours
            self._write_down((), reason)
        else:
            self._write_down(events)

    def _write_down(
        self, events: Sequence[engine.JobEvent], error: Exception | None = None
    ) -> None:
        frames: list[bytes] = []
        try:
            frames += self.writer.write(events)
            for event in events:
                if isinstance(event, engine.Failed):
                    error = event.error
                    break
            if error is None and self.has_ended:
                frames += self.writer.end()
        except Exception as reason:  # a fault of ours
            error = error or reason
        self._is_empty = self._is_empty and not frames
        if error is not None:
            frames += self.writer.fail(error)
        is_finished = error is not None or self.has_ended
        self._add(frames, error, is_finished)
        if is_finished:
            self.close()

    def _add(self, frames: list[bytes], error: Exception | None, is_finished: bool) -> None:
        self._frames += frames
        self.error, self.has_nothing_but_error = error, error is not None and self._is_empty
        self.is_finished = is_finished


class KeptTranscript(Transcript):
    """The frames of one answer, which are kept. Several request threads may read it, each from
    where it likes.

    The thread that waits for the next frame takes the jobs' events and writes the frames for all;
    that may be another each time, so an answer needs no thread of its own. When its last reader has
    left, that one's thread goes on for `keep` seconds, in case that a client comes back.
    """

    __slots__ = (
        "_changed",
        "_has_keeper",
        "_is_abandoned",
        "_is_driven",
        "_keep",
        "_last_left",
        "_num_readers",
        "_wake",
        "num_bytes",
    )

    def __init__(self, submitted: Submitted, writer: Writer, keep: float) -> None:
        """`keep`: seconds for which the frames are there for others, and the jobs go on without
        any reader. Nothing has joined yet.
        """
        super().__init__(submitted, writer)
        self.num_bytes = 0
        self._keep = keep
        self._changed = threading.Condition()  # guards all below; notified when one of them changes
        self._is_driven = False  # whether a thread takes events now
        self._num_readers = 0
        self._has_keeper = False  # whether a thread goes on without a client
        self._last_left = -math.inf
        self._is_abandoned = False
        self._wake: Callable[[], None] | None = None

    @property
    def num_frames(self) -> int:
        """Those that are there."""
        return len(self._frames)

    @property
    def num_readers(self) -> int:
        return self._num_readers

    def notify(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._stream.poll(wake, alone=False)

    def is_read(self, position: int) -> bool:
        return self.is_finished and position >= len(self._frames)

    def is_over(self, now: float) -> bool:
        """Whether it is not to be read again."""
        with self._changed:
            if self._num_readers or not self.is_finished:
                return False
            return self._is_abandoned or now >= self._last_left + self._keep

    def join(self) -> bool:
        """Be one reader more, until `leave`. False if that is too late."""
        with self._changed:
            self._num_readers += not self._is_abandoned
            return not self._is_abandoned

    def take(self, position: int, timeout: float) -> list[bytes]:
        with self._changed:
            if self._is_driven and not self._has(position):
                self._changed.wait_for(lambda: self._has(position) or not self._is_driven, timeout)
            if self._has(position) or self._is_driven:
                return self._frames[position:]
            self._is_driven = True
        try:
            self._drive(timeout)
        finally:
            with self._changed:
                self._is_driven = False
                self._changed.notify_all()
        with self._changed:
            return self._frames[position:]

    def take_now(self, position: int, now: float) -> list[bytes]:
        is_due = self._has(position) or self._stream.has_events or now >= self._next_deadline
        return self.take(position, 0) if is_due else []

    def leave(self) -> None:
        """Returns when the jobs have ended, another client reads, or `keep` seconds are over; what
        has not ended by then is cancelled.
        """
        with self._changed:
            self._num_readers -= 1
            self._last_left = time.monotonic()
            if self._num_readers or self._has_keeper:
                return
            self._has_keeper = True
        while self._is_kept():
            self.take(self.num_frames, LOOK)

    def _is_kept(self) -> bool:
        with self._changed:
            if not (self.is_finished or self._num_readers):
                if time.monotonic() < self._last_left + self._keep:
                    return True
                self.is_finished = self._is_abandoned = True
            self._has_keeper = False
            self._changed.notify_all()
        if self._is_abandoned:
            self.close()
        return False

    def _has(self, position: int) -> bool:
        return self.is_finished or len(self._frames) > position

    def _add(self, frames: list[bytes], error: Exception | None, is_finished: bool) -> None:
        with self._changed:
            super()._add(frames, error, is_finished)
            for frame in frames:
                self.num_bytes += len(frame)
        if self._wake is not None and self._num_readers + self._has_keeper > 1:
            self._wake()  # this may be the thread of another
