"""One client's end of an answer: what it is sent, and when. By the thread that writes to it."""

import math
import time
from collections.abc import Callable, Sequence

from switchyard.app.delivery.transcript import Transcript
from switchyard.app.delivery.watch import WatchedClient

NEWS = 5  # looks for a comment, from one heartbeat to the next
PROBE = 0.1  # seconds between writes to a client that may have left


class Output:
    """The body of one answer, piece by piece: frames as they come, else a heartbeat in time. Close
    it in the end.
    """

    __slots__ = (
        "_comment",
        "_frames",
        "_heartbeat",
        "_is_closed",
        "_last_piece",
        "_position",
        "_transcript",
        "client",
    )

    def __init__(
        self, transcript: Transcript, client: WatchedClient, heartbeat: float, position: int = 0
    ) -> None:
        """From `position` on, for a client that is one of the transcript's readers. `heartbeat` in
        seconds.
        """
        self.client = client
        self._transcript = transcript
        self._heartbeat = heartbeat
        self._position = position
        self._frames: Sequence[bytes] = ()
        self._comment = b""
        self._last_piece = -math.inf
        self._is_closed = False

    @property
    def is_finished(self) -> bool:
        """Whether nothing is to come; there may be one more piece."""
        return self._transcript.is_read(self._position)

    @property
    def has_begun(self) -> bool:
        """Whether there has been text, so that from now on no wait but for more of it is left."""
        return self._transcript.has_begun

    @property
    def num_behind(self) -> int:
        """Tokens that were generated and not written. Any thread."""
        return self._transcript.num_behind

    @property
    def is_cut_off(self) -> bool:
        """Whether there would be more to write, but for the client."""
        return not (self.is_finished or self._transcript.has_ended)

    @property
    def patience(self) -> float:
        """Seconds until there may be something to write whatever comes."""
        return min(self._interval, self._heartbeat / NEWS)

    def notify(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there may be news. It must not block."""
        self._transcript.notify(wake)

    def wait_whole(self) -> bytes:
        """Wait for all frames. Raises ClientGone, or what went wrong before there was one."""
        frames: list[bytes] = []
        while not self.is_finished:
            frames += self._wait_early(math.inf)
        return b"".join(frames)

    def wait_first(self) -> None:
        """Wait for the first frames, a heartbeat, or an end without any. Raises what went wrong
        before there was one; it still has a status of its own.
        """
        deadline = time.monotonic() + self._heartbeat
        while True:
            self._frames = self._wait_early(max(deadline - time.monotonic(), 0))
            # Half-closed: a write must tell whether the client is there.
            if self._frames or self.is_finished or self.client.is_half_closed:
                return
            if time.monotonic() >= deadline:
                return

    def wait(self) -> None:
        """For frames, or until it is time for something else. Raises ClientGone."""
        self._frames = [*self._frames, *self._wait(self.patience)]

    def take(self, now: float) -> bytes | None:
        """What there is to write: all frames that have piled up, as one piece. Empty where the
        status line shall be sent, and nothing else; None also behind the last frame.
        """
        frames, self._frames = self._frames, ()
        writer = self._transcript.writer
        is_news = frames or (writer.comment and writer.comment != self._comment)
        has_written = self._last_piece > -math.inf
        is_early = now - self._last_piece < self._interval
        if not is_news and (is_early or (has_written and self.is_finished)):
            return None
        self._comment, self._last_piece = writer.comment, now
        return b"".join(frames) or writer.comment or writer.heartbeat

    def take_now(self, now: float) -> bytes:
        """The frames that have come, once it `has_begun`. Neither waits nor looks."""
        frames = self._transcript.take_now(self._position, now)
        if not frames:
            return b""
        self._position += len(frames)
        self._comment, self._last_piece = self._transcript.writer.comment, now
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def close(self) -> None:
        """Harmless when called again."""
        if not self._is_closed:
            self._is_closed = True
            self._transcript.leave()

    def _wait_early(self, timeout: float) -> Sequence[bytes]:
        """While the answer has no status yet: raises what went wrong before there was any frame,
        too.
        """
        frames = self._wait(timeout)
        if self._transcript.error is not None and self._transcript.has_nothing_but_error:
            raise self._transcript.error.with_traceback(None)
        return frames

    def _wait(self, timeout: float) -> Sequence[bytes]:
        """For frames, at most so many seconds, or until the client becomes half-closed. Raises
        ClientGone.
        """
        frames = self.client.wait(
            lambda seconds: self._transcript.take(self._position, seconds),
            lambda: self.is_finished,
            timeout,
        )
        self._position += len(frames)
        return frames

    @property
    def _interval(self) -> float:
        """Seconds from one piece to the next."""
        return min(self._heartbeat, PROBE) if self.client.is_half_closed else self._heartbeat
