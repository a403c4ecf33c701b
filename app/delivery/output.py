"""What is written to one client of a stream, and when. By the thread that writes to it."""

import math
import time
from collections.abc import Callable, Sequence

from switchyard.app.delivery.transcript import Reading, Writer

NEWS = 5  # looks for a comment, from one heartbeat to the next
PROBE = 0.1  # seconds between writes to a client that may have left


class Output:
    """The body of one stream, piece by piece: frames as they come, else a heartbeat in time."""

    __slots__ = (
        "_comment",
        "_frames",
        "_heartbeat",
        "_last_piece",
        "_reading",
        "_writer",
    )

    def __init__(self, reading: Reading, writer: Writer, heartbeat: float) -> None:
        """`heartbeat` in seconds."""
        self._reading = reading
        self._writer = writer
        self._heartbeat = heartbeat
        self._frames: Sequence[bytes] = ()
        self._comment = b""
        self._last_piece = -math.inf

    @property
    def is_finished(self) -> bool:
        """Whether nothing is to come; there may be one more piece."""
        return self._reading.is_finished

    @property
    def has_begun(self) -> bool:
        """Whether there has been text, so that from now on no wait but for more of it is left."""
        return self._reading.has_begun

    @property
    def patience(self) -> float:
        """Seconds until there may be something to write whatever comes."""
        return min(self._interval, self._heartbeat / NEWS)

    def wait_first(self) -> None:
        """Wait for the first frames, a heartbeat, or an end without any. Raises what went wrong
        before there was one; it still has a status of its own.
        """
        deadline = time.monotonic() + self._heartbeat
        while True:
            self._frames = self._reading.take_first(max(deadline - time.monotonic(), 0))
            # Half-closed: a write must tell whether anybody is there.
            if self._frames or self.is_finished or self._reading.is_half_closed:
                return
            if time.monotonic() >= deadline:
                return

    def wait(self) -> None:
        """For frames, or until it is time for something else. Raises ClientGone."""
        self._frames = [*self._frames, *self._reading.take(self.patience)]

    def look(self) -> None:
        """At the client, as `wait` does. Raises ClientGone."""
        self._reading.look()

    def take_now(self, now: float) -> bytes:
        """The frames that have come, once it `has_begun`. Neither waits nor looks."""
        frames = self._reading.take_now(now)
        if frames:
            self._comment, self._last_piece = self._writer.comment, now
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def take(self, now: float) -> bytes | None:
        """What there is to write: all frames that have piled up, as one piece. Empty where the
        status line shall be sent, and nothing else.
        """
        frames, self._frames = self._frames, ()
        comment = self._writer.comment
        is_news = frames or (comment and comment != self._comment)
        if not is_news and now - self._last_piece < self._interval:
            return None
        self._comment, self._last_piece = comment, now
        return b"".join(frames) or comment or self._writer.heartbeat or b""

    def notify(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there may be news. It must not block."""
        self._reading.notify(wake)

    @property
    def _interval(self) -> float:
        """Seconds from one piece to the next."""
        return min(self._heartbeat, PROBE) if self._reading.is_half_closed else self._heartbeat
