"""Transcripts, which hold an answer as frames for one or several clients. Used on request threads
and the sender's thread.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from switchyard import engine
from switchyard.app.delivery.reader import Reader, Submitted
from switchyard.app.delivery.watch import LOOK


class Writer(Protocol):
    """Turns events into frames, the indivisible pieces of a body."""

    @property
    def mimetype(self) -> str: ...

    @property
    def is_streamed(self) -> bool:
        """Whether frames are sent as they arrive. Otherwise the body is sent whole."""

    @property
    def heartbeat(self) -> bytes:
        """The bytes that keep the connection of a silent stream open."""

    @property
    def comment(self) -> bytes:
        """The progress before the first frame, as a comment that clients may ignore."""

    @property
    def is_numbered(self) -> bool:
        """Whether frames have numbers, so that a client can resume the stream."""

    def write(self, events: Sequence[engine.JobEvent]) -> list[bytes]: ...

    def end(self) -> list[bytes]:
        """The frames after the last event, if all jobs have finished."""

    def fail(self, error: Exception) -> list[bytes]:
        """The frames after the last event of an answer that has failed."""


class Transcript(Reader):
    """The frames of one answer for one client. A frame is dropped once it is taken."""

    __slots__ = ("_frames", "_is_empty", "error", "has_nothing_but_error", "is_finished", "writer")

    def __init__(self, submitted: Submitted, writer: Writer) -> None:
        super().__init__(submitted)
        self.writer = writer
        self.is_finished = False  # whether no more frames come
        self.error: Exception | None = None  # the reason if the answer has failed
        self.has_nothing_but_error = False
        self._frames: list[bytes] = []
        self._is_empty = True  # whether no frame has been added yet

    def notify(self, wake: Callable[[], None]) -> None:
        """Registers `wake`, which is called from now on when there may be new frames. `wake` must
        not block.
        """
        self._stream.poll(wake, alone=True)

    def is_read(self, position: int) -> bool:
        """Whether there is no further frame for a client that has taken `position` frames."""
        return self.is_finished and not self._frames

    def take(self, position: int, timeout: float) -> list[bytes]:
        """Waits at most `timeout` seconds for the frames from `position` on.

        A transcript that isn't kept has only the frames that have not been taken.
        """
        if not self.is_finished:
            self._drive(timeout)
        frames, self._frames = self._frames, []
        return frames

    def take_now(self, position: int, now: float) -> list[bytes]:
        """The frames from `position` on, once the answer `has_begun`. Never waits."""
        try:
            if now >= self._next_deadline:
                self._check_deadlines(now)
            events = self._stream.take_now()
            # The most frequent case by far.
            if len(events) == 1 and isinstance(events[0], engine.Chunk):
                self._new_tokens += len(events[0].token_ids)
                return self.writer.write(events)
            if events:
                self._note(events)
                self._write_down(events)
        except Exception as reason:  # TimedOut, or a bug
            self._write_down((), reason)
        frames, self._frames = self._frames, []
        return frames

    def leave(self) -> None:
        """Called when a client stops reading. Cancels unfinished jobs."""
        self.is_finished = True
        self.close()

    def _drive(self, timeout: float) -> None:
        """Waits for events, and adds their frames."""
        try:
            events = self.take_events(timeout)
        except Exception as reason:  # TimedOut, or a bug
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
        except Exception as reason:  # a bug
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
    """The kept frames of one answer. Several threads may read the transcript, each from its own
    position.

    A kept transcript needs no thread of its own: a reader that waits for the next frame drives it.
    That reader takes the jobs' events and writes the frames for all readers. When the last reader
    leaves, its thread keeps driving the transcript for `keep` seconds, in case a client comes back.
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
        """`keep`: seconds for which the jobs continue, and the frames are kept, after the last
        reader has left. A new transcript has no reader; call `join`.
        """
        super().__init__(submitted, writer)
        self.num_bytes = 0
        self._keep = keep
        # Guards the fields below; notified when one of them changes.
        self._changed = threading.Condition()
        self._is_driven = False  # whether a thread is taking events
        self._num_readers = 0
        self._has_keeper = False  # whether the last reader's thread continues without a client
        self._last_left = -math.inf
        self._is_abandoned = False
        self._wake: Callable[[], None] | None = None

    @property
    def num_frames(self) -> int:
        """The number of frames written so far."""
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
        """Whether clients can no longer read the transcript, so that it can be dropped."""
        with self._changed:
            if self._num_readers or not self.is_finished:
                return False
            return self._is_abandoned or now >= self._last_left + self._keep

    def join(self) -> bool:
        """Adds a reader, which stays until `leave`. Returns False if the transcript has already
        been abandoned.
        """
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
        """Removes a reader. The last reader's thread stays in this call, and drives the transcript.

        The call returns when the jobs have ended, another client reads the transcript, or `keep`
        seconds have passed. Unfinished jobs are then cancelled, unless another client reads the
        transcript.
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
            self._wake()  # the thread that drives may not be the one that is waiting
