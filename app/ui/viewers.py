"""Who watches how the server stands. Each second it is put into words once, whoever watches."""

import math
import threading
import time
import weakref
from collections.abc import Callable

import flask

from switchyard.app.config import Settings
from switchyard.app.delivery.framing import EVENTS, data
from switchyard.app.delivery.sender import Sender, Streamed
from switchyard.app.delivery.watch import LOOK, WatchedClient
from switchyard.app.exceptions import LimitReached
from switchyard.app.http.identity import caller_of
from switchyard.app.operations.account import account_of
from switchyard.app.routes.status import status_of
from switchyard.app.services import Services, services

WAIT = 30.0  # seconds until another viewer may have left


class Board:
    """The latest second's status, as frames. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards what follows
        self._second = -1
        # By whether all is seen, and the models: the frame, and whether the server goes on.
        self._frames: dict[tuple[bool, tuple[str, ...]], tuple[bytes, bool]] = {}

    def frame(self, of: Services, sees_all: bool, second: int) -> tuple[bytes, bool]:
        """Of that second, or of a later one; and whether there will be more."""
        which = sees_all, tuple(of.models.names)
        with self._lock:
            if second > self._second:
                self._second = second
                self._frames.clear()
            found = self._frames.get(which)
            if found is None:
                body = status_of(of, sees_all)
                # A server that ends would wait for its viewers.
                found = self._frames[which] = data({**body}, ""), not of.models.is_over
            return found


class View:
    """One viewer's end of the status: a frame a second. By the thread that writes to it."""

    __slots__ = ("_frame", "_is_allowed", "_second", "client", "is_finished")

    has_begun = True  # no wait is left but for the next second
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
        """There is never news but in time."""

    def take_now(self, now: float) -> bytes:
        return b""

    def take(self, now: float) -> bytes | None:
        """The frame of a new second."""
        second = math.floor(now)
        if self.is_finished or second <= self._second:
            return None
        self._second = second
        if not self._is_allowed():  # its key was taken back meanwhile
            self.is_finished = True
            return None
        frame, goes_on = self._frame(second)
        self.is_finished = not goes_on
        return frame

    def wait(self) -> None:
        """Until there may be something to write. Raises ClientGone."""
        time.sleep(self.patience)
        self.client.check()


class Viewers:
    """Of one application. Each has a request thread, which the sender lets sleep."""

    def __init__(self, settings: Settings) -> None:
        self._board = Board()
        self._sender = Sender()  # of their own, for streams of text to have nothing to do with it
        self._places = threading.BoundedSemaphore(settings.max_viewers)
        self._number = settings.max_viewers
        self._send_timeout = settings.send_timeout

    def answer(self) -> flask.Response:
        """The stream for the current request. Raises LimitReached."""
        here, caller = services(), caller_of(flask.request)
        sees_all = caller is None or caller.role != "user"
        client = WatchedClient(flask.request.environ, serves_half_closed=True)
        view = View(
            client,
            lambda second: self._board.frame(here, sees_all, second),
            _is_allowed(here),
        )
        if not self._places.acquire(blocking=False):
            raise LimitReached(
                f"{self._number} viewers watch, as many as this server takes",
                WAIT,
                "too_many_viewers",
            )
        response = Streamed(view, self._sender, self._send_timeout, EVENTS)
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Accel-Buffering"] = "no"
        # Called once: at the end, or where a server drops the response and closes nothing.
        response.call_on_close(weakref.finalize(response, self._places.release))
        return response


def _is_allowed(here: Services) -> Callable[[], bool]:
    """Whether the current request's key is valid still, for later."""
    account = account_of(flask.request.environ)
    if here.checks is None or account is None or account.key is None:
        return lambda: True
    keyring, key = here.checks.keyring, account.key
    return lambda: keyring.find_again(key) is not None
