"""Viewers of the server's state: pages that get a frame every second. Each frame is made once for
all viewers.
"""

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import flask
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard.app.config import Settings
from switchyard.app.delivery.framing import EVENTS, data
from switchyard.app.delivery.sender import Outlet, Sender, Streamed
from switchyard.app.delivery.watch import LOOK, WatchedClient
from switchyard.app.http.identity import caller_of
from switchyard.app.operations.account import account_of
from switchyard.app.routes.status import status_of
from switchyard.app.services import Services, services

MAX_QUEUE = 20  # maximum number of waiting requests shown
ASK = 0.25  # seconds to wait for the engine thread to report its queue
# A line of server-sent events: milliseconds until a viewer that got a single frame reconnects.
AGAIN_SOON, AGAIN_LATER = b"retry: 1000\n", b"retry: 5000\n"


class Waiting(TypedDict):
    """A request in the queue."""

    model: str
    place: int
    priority: int
    age: float
    prompt_tokens: int


class Board:
    """The frames of the most recent second. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields below
        self._second = -1
        # For each role and set of models: the frame, and whether more frames follow.
        self._frames: dict[tuple[str, tuple[str, ...]], tuple[bytes, bool]] = {}

    def frame(self, of: Services, role: str, second: int) -> tuple[bytes, bool]:
        """The frame of this second or of a later one, and whether there will be more frames."""
        which = role, tuple(of.models.names)
        with self._lock:
            if second > self._second:
                self._second = second
                self._frames.clear()
            found = self._frames.get(which)
            if found is None:
                body: dict[str, Any] = {**status_of(of, role != "user")}
                if role == "admin":
                    body["queue"] = _queue(of)
                # The last frame ends the stream, because a server that is ending would wait for its
                # viewers.
                found = self._frames[which] = data(body, ""), not of.models.is_over
            return found


def _queue(of: Services) -> list[Waiting]:
    """The first waiting requests of all models."""
    waiting = [
        Waiting(
            model=model.config.name,
            place=job.place,
            priority=job.priority,
            age=round(job.age, 1),
            prompt_tokens=job.prompt_tokens,
        )
        for model in of.models.engines
        for job in model.jobs(ASK)
        if job.place is not None
    ]
    return sorted(waiting, key=lambda one: one["place"])[:MAX_QUEUE]


class View:
    """One viewer's stream: a frame per second. Used by the thread that writes the stream."""

    __slots__ = ("_frame", "_is_allowed", "_second", "client", "is_finished")

    has_begun = True  # the sender may write from the start
    patience = LOOK

    def __init__(
        self,
        client: WatchedClient,
        frame: Callable[[int], tuple[bytes, bool]],
        is_allowed: Callable[[], bool],
    ) -> None:
        self.client = client
        self.is_finished = False
        self._frame = frame
        self._is_allowed = is_allowed
        self._second = -1

    def notify(self, wake: Callable[[], None]) -> None:
        """Does nothing, because frames depend only on the time."""

    def take_now(self, now: float) -> bytes:
        return b""

    def take(self, now: float) -> bytes | None:
        """The frame of a new second; None if the current second's frame has been taken."""
        second = math.floor(now)
        if self.is_finished or second <= self._second:
            return None
        self._second = second
        if not self._is_allowed():  # the viewer's API key was revoked in the meantime
            self.is_finished = True
            return None
        frame, goes_on = self._frame(second)
        self.is_finished = not goes_on
        return frame

    def wait(self) -> None:
        """Never called, because without the sender there is only one frame."""


class Viewers:
    """The viewers of one application. A viewer holds no request thread.

    The sender writes to all viewers, on connections that the server has detached. Without a
    detached connection a viewer gets one frame, and the time after which to reconnect.
    """

    def __init__(self, settings: Settings) -> None:
        # Separate from the sender of text streams, which viewers must not delay.
        self.sender = Sender()
        self.send_timeout = settings.send_timeout
        self._board = Board()
        self._max = settings.max_viewers
        self._lock = threading.Lock()  # guards the fields below
        self._number = 0

    def answer(self) -> flask.Response:
        """The stream for the current request."""
        here, caller = services(), caller_of(flask.request)
        role = "admin" if caller is None else caller.role
        client = WatchedClient(flask.request.environ, serves_half_closed=True)
        view = View(client, lambda second: self._board.frame(here, role, second), _is_allowed(here))
        response = Watched(view, self, here)
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Accel-Buffering"] = "no"
        return response

    # Any thread

    def enter(self, most: int) -> bool:
        """Takes one of at most `most` places. Returns whether a place was free; `leave` gives it
        back.
        """
        with self._lock:
            has_room = self._number < min(self._max, most)
            self._number += has_room
            return has_room

    def leave(self) -> None:
        with self._lock:
            self._number -= 1


class Watched(Streamed):
    """A viewer's response: a request thread writes the first frame, and the sender writes all
    others.
    """

    def __init__(self, view: View, viewers: Viewers, of: Services) -> None:
        self._viewers = viewers
        self._threads = of.threads
        super().__init__(view, viewers.sender, viewers.send_timeout, EVENTS)

    def _write(self, sender: Sender, send_timeout: float) -> Iterator[bytes]:
        output, server, viewers = self._output, self._server, self._viewers
        detach = None if server is None else self._threads.detach
        has_place = detach is not None and viewers.enter(self._threads.max_detached)
        frame = b""
        try:
            frame = output.take(time.monotonic()) or b""
            if not has_place:
                frame = (AGAIN_SOON if detach is None else AGAIN_LATER) + frame
                yield frame
                return
            server.force_close()  # the headers say that the connection closes at the end
            yield frame
            if detach is not None and not output.is_finished:
                server.chunked = False  # the sender writes the last chunk, not the server
                outlet = Viewing(output, send_timeout, server.sock, detach(), viewers.leave)
                has_place = False  # the outlet has the place now
                if not sender.start(outlet):
                    outlet.end()
        finally:
            if has_place:
                viewers.leave()
            if self.on_sent is not None:
                self.on_sent(len(frame))


class Viewing(Outlet):
    """The sender's end of one viewer's stream, on a detached connection, which `end` closes."""

    __slots__ = ("_close", "_leave", "_socket")

    def __init__(
        self,
        output: Any,
        send_timeout: float,
        sock: socket.socket,
        close: Callable[[], None],
        leave: Callable[[], None],
    ) -> None:
        super().__init__(output, send_timeout)
        self._socket, self._close, self._leave = sock, close, leave

    def end(self) -> None:
        try:
            if self.error is None:
                self._socket.send(b"0\r\n\r\n", socket.MSG_DONTWAIT)
        except OSError:
            pass  # the client has left, or reads nothing
        finally:
            self._close()
            self._leave()


def _is_allowed(here: Services) -> Callable[[], bool]:
    """Returns a function that checks whether the current request's API key is still valid."""
    account = account_of(flask.request.environ)
    if here.checks is None or account is None or account.key is None:
        return lambda: True
    keyring, key = here.checks.keyring, account.key
    return lambda: keyring.find_again(key) is not None
