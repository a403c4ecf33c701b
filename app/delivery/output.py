"""One client's end of an answer, which determines what to send and when. Used by the writing
thread, except where noted.
"""

import math
import time
from collections.abc import Callable, Sequence

from switchyard.app.delivery.transcript import Transcript
from switchyard.app.delivery.watch import WatchedClient

NEWS = 5  # number of checks for a new comment per heartbeat interval
PROBE = 0.1  # seconds between writes to a client that may have left


class Output:
    """The body of one answer in pieces: frames as they arrive, and heartbeats between them.

    The caller closes the output.
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
        """`client` has joined the transcript's readers. The client gets the frames starting at
        number `position`. `heartbeat`: seconds.
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
        """Whether all frames have been taken from the transcript. One more piece may remain for
        `take`.
        """
        return self._transcript.is_read(self._position)

    @property
    def has_begun(self) -> bool:
        """Whether the answer has text. Once it has, the writing thread waits only for more text."""
        return self._transcript.has_begun

    @property
    def num_behind(self) -> int:
        """The number of tokens that have been generated but not yet written. Thread-safe."""
        return self._transcript.num_behind

    @property
    def is_cut_off(self) -> bool:
        """Whether the answer would continue if its client had not left."""
        return not (self.is_finished or self._transcript.has_ended)

    @property
    def patience(self) -> float:
        """Seconds until a heartbeat or comment may be due if there are no events."""
        return min(self._interval, self._heartbeat / NEWS)

    def notify(self, wake: Callable[[], None]) -> None:
        """Registers `wake`, which is called when there may be new frames. `wake` must not block."""
        self._transcript.notify(wake)

    def wait_whole(self) -> bytes:
        """Waits for all frames, and joins them. Raises ClientGone, or any error before the first
        frame.
        """
        frames: list[bytes] = []
        while not self.is_finished:
            frames += self._wait_early(math.inf)
        return b"".join(frames)

    def wait_first(self) -> None:
        """Waits for the first frames or the end of the answer, for at most one heartbeat interval.
        Raises any error before the first frame, so that the response gets the error's status.
        """
        deadline = time.monotonic() + self._heartbeat
        while True:
            self._frames = self._wait_early(max(deadline - time.monotonic(), 0))
            # Only a write shows whether a half-closed client is still there.
            if self._frames or self.is_finished or self.client.is_half_closed:
                return
            if time.monotonic() >= deadline:
                return

    def wait(self) -> None:
        """Waits at most `patience` seconds for frames. Raises ClientGone."""
        self._frames = [*self._frames, *self._wait(self.patience)]

    def take(self, now: float) -> bytes | None:
        """The next piece to write: all frames so far, a comment, or a heartbeat.

        Returns empty bytes if only the response's headers are to be sent, and None if nothing is
        due or the stream has ended.
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
        """The new frames as one piece, once the answer `has_begun`.

        Never waits, and never checks the client.
        """
        frames = self._transcript.take_now(self._position, now)
        if not frames:
            return b""
        self._position += len(frames)
        self._comment, self._last_piece = self._transcript.writer.comment, now
        return frames[0] if len(frames) == 1 else b"".join(frames)

    def close(self) -> None:
        """Stops reading the transcript. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._transcript.leave()

    def _wait_early(self, timeout: float) -> Sequence[bytes]:
        """Like `_wait`, for use before the response has a status. Also raises any error before the
        first frame.
        """
        frames = self._wait(timeout)
        if self._transcript.error is not None and self._transcript.has_nothing_but_error:
            raise self._transcript.error.with_traceback(None)
        return frames

    def _wait(self, timeout: float) -> Sequence[bytes]:
        """Waits for frames, for `timeout` seconds or until the client becomes half-closed.

        Raises ClientGone.
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
        """Seconds between pieces while no frames arrive."""
        return min(self._heartbeat, PROBE) if self.client.is_half_closed else self._heartbeat
