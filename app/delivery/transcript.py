"""What a request has been answered so far, for all who read it. Request threads."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from switchyard import engine
from switchyard.app.delivery.reader import Reader
from switchyard.app.delivery.watch import LOOK, Watch


class Writer(Protocol):
    """Turns events into frames: the pieces of a body that are not divided any more."""

    @property
    def mimetype(self) -> str: ...

    @property
    def heartbeat(self) -> bytes | None:
        """What keeps the connection open; None if the body comes in one piece."""

    @property
    def comment(self) -> bytes:
        """How far the answer is, for who waits for its first frame; of no consequence."""

    @property
    def is_numbered(self) -> bool:
        """Whether frames say which they are."""

    def write(self, events: Sequence[engine.JobEvent]) -> list[bytes]: ...

    def end(self) -> list[bytes]:
        """Behind the last event, if all jobs have finished."""

    def fail(self, error: Exception) -> list[bytes]:
        """Instead, if one has not."""


class Transcript:
    """The frames of one answer. Several request threads may read it, each from where it likes.

    Whoever waits for the next frame takes the jobs' events and writes the frames for all; that may
    be somebody else each time, so an answer needs no thread of its own. When nobody reads any more,
    the thread of the last reader goes on for `keep` seconds, in case that somebody comes back.
    """

    __slots__ = (
        "_changed",
        "_frames",
        "_has_keeper",
        "_is_abandoned",
        "_is_driven",
        "_last_left",
        "_num_readers",
        "_reader",
        "_wake",
        "error",
        "has_nothing_but_error",
        "identifier",
        "is_finished",
        "keep",
        "num_bytes",
        "writer",
    )

    def __init__(self, reader: Reader, writer: Writer, keep: float) -> None:
        """`keep`: seconds for which the frames are there for others, and the jobs go on without
        any reader. With 0 there is one reader, and its frames are forgotten as it takes them.
        """
        self.identifier = reader.identifier
        self.writer = writer
        self.keep = keep
        self._reader = reader
        self._changed = threading.Condition()  # guards all below; notified when one of them changes
        self._frames: list[bytes] = []
        self._is_driven = False  # whether a thread takes events now
        self._num_readers = 0
        self._has_keeper = False  # whether a thread goes on without a client
        self._last_left = -math.inf
        self._is_abandoned = False
        self._wake: Callable[[], None] | None = None
        self.num_bytes = 0
        self.is_finished = False
        self.error: Exception | None = None  # why there is no more
        self.has_nothing_but_error = False

    @property
    def num_frames(self) -> int:
        """Those that are there."""
        return len(self._frames)

    @property
    def num_readers(self) -> int:
        return self._num_readers

    @property
    def has_begun(self) -> bool:
        """Whether there has been text."""
        return self._reader.has_begun

    def notify(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there may be new frames, from now on. It must not block."""
        self._wake = wake
        self._reader.notify(wake, alone=not self.keep)

    def is_over(self, now: float) -> bool:
        """Whether it is not to be read again."""
        with self._changed:
            if self._num_readers or not self.is_finished:
                return False
            return self._is_abandoned or now >= self._last_left + self.keep

    def join(self) -> bool:
        """Be one reader more, until `leave`. False if that is too late."""
        with self._changed:
            self._num_readers += not self._is_abandoned
            return not self._is_abandoned

    def take(self, position: int, timeout: float) -> list[bytes]:
        """Wait for frames from `position` on, at most `timeout` seconds, unless that was all. Where
        none are kept, it is 0 and they are all that there are.
        """
        with self._changed:
            if self._is_driven and not self._has(position):
                self._changed.wait_for(lambda: self._has(position) or not self._is_driven, timeout)
            if self._has(position) or self._is_driven:
                return self._from(position)
            self._is_driven = True
        try:
            self._drive(timeout)
        finally:
            with self._changed:
                self._is_driven = False
                self._changed.notify_all()
        with self._changed:
            return self._from(position)

    def take_now(self, position: int, now: float) -> list[bytes]:
        """Likewise, once it `has_begun`, without any wait."""
        if self.keep:
            is_due = self._has(position) or self._reader.is_due(now)
            return self.take(position, 0) if is_due else []
        events: Sequence[engine.JobEvent] = ()
        try:
            events = self._reader.take_now(now)  # there is one reader, so nobody else does
            if len(events) == 1 and isinstance(events[0], engine.Chunk):  # nearly always
                return self.writer.write(events)
        except Exception as reason:  # TimedOut, or a fault of ours
            self._write_down((), reason)
        else:
            if events:
                self._write_down(events)
        return self._from(position)

    def leave(self) -> None:
        """Returns when the jobs have ended, somebody else reads, or `keep` seconds are over; what
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
                if time.monotonic() < self._last_left + self.keep:
                    return True
                self.is_finished = self._is_abandoned = True
            self._has_keeper = False
            self._changed.notify_all()
        if self._is_abandoned:
            self._reader.close()
        return False

    def _has(self, position: int) -> bool:
        return self.is_finished or len(self._frames) > position

    def _from(self, position: int) -> list[bytes]:
        if self.keep:
            return self._frames[position:]
        frames, self._frames = self._frames, []
        return frames

    def _drive(self, timeout: float) -> None:
        """Wait for events, and write them down."""
        try:
            events = self._reader.take(timeout)
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
            if error is None and self._reader.is_finished:
                frames += self.writer.end()
        except Exception as reason:  # a fault of ours
            error = error or reason
        is_first = not (frames or self.num_bytes)
        if error is not None:
            frames += self.writer.fail(error)
        is_finished = error is not None or self._reader.is_finished
        with self._changed:
            self._frames += frames
            for frame in frames:
                self.num_bytes += len(frame)
            self.error, self.has_nothing_but_error = error, error is not None and is_first
            self.is_finished = is_finished
        if self._wake is not None and self._num_readers + self._has_keeper > 1:
            self._wake()  # this may be the thread of another
        if is_finished:
            self._reader.close()


class Reading:
    """One client's reading of a transcript, from `position` on. Close it in the end."""

    __slots__ = (
        "_is_closed",
        "_position",
        "_transcript",
        "_watch",
    )

    def __init__(self, transcript: Transcript, watch: Watch, position: int = 0) -> None:
        """The transcript has been joined."""
        self._transcript = transcript
        self._watch = watch
        self._position = position
        self._is_closed = False

    @property
    def is_half_closed(self) -> bool:
        return self._watch.is_half_closed

    @property
    def is_finished(self) -> bool:
        """Whether the last frame has been taken."""
        transcript = self._transcript
        return transcript.is_finished and self._position >= transcript.num_frames

    @property
    def has_begun(self) -> bool:
        """Whether there has been text."""
        return self._transcript.has_begun

    def notify(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there may be, from now on. It must not block."""
        self._transcript.notify(wake)

    def take(self, timeout: float = math.inf) -> Sequence[bytes]:
        """Wait for frames, at most `timeout` seconds, or until the client becomes half-closed.

        Raises ClientGone.
        """
        frames = self._watch.wait(
            lambda seconds: self._transcript.take(self._position, seconds),
            lambda: self.is_finished,
            timeout,
        )
        return self._count(frames)

    def look(self) -> None:
        """At the client. Raises ClientGone."""
        self._watch.look()

    def take_now(self, now: float) -> Sequence[bytes]:
        """The frames that there are, once it `has_begun`, without a look at the client."""
        return self._count(self._transcript.take_now(self._position, now))

    def take_first(self, timeout: float = math.inf) -> Sequence[bytes]:
        """Likewise, while the answer has no status yet: raises what went wrong before there was any
        frame, too.
        """
        frames = self.take(timeout)
        if self._transcript.error is not None and self._transcript.has_nothing_but_error:
            raise self._transcript.error.with_traceback(None)
        return frames

    def _count(self, frames: Sequence[bytes]) -> Sequence[bytes]:
        if self._transcript.keep:
            self._position += len(frames)
        return frames

    def close(self) -> None:
        """Harmless when called again."""
        if not self._is_closed:
            self._is_closed = True
            self._transcript.leave()
