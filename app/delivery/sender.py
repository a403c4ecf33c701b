"""The one thread that writes streams, where the server lets it: to wake a thread for each token of
each stream costs several times what the token does.
"""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import flask

from switchyard.app.delivery.watch import LOOK, WatchedClient
from switchyard.app.exceptions import ClientGone
from switchyard.app.http.client import Client

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

logger = logging.getLogger(__name__)

RETRY = 0.01  # seconds until a socket that was full is tried again


class Feed(Protocol):
    """What is written to one client: `Output`, for one. By the thread that writes."""

    @property
    def client(self) -> WatchedClient: ...

    @property
    def is_finished(self) -> bool:
        """Whether nothing is to come; there may be one more piece."""

    @property
    def has_begun(self) -> bool:
        """Whether the sender may write from now on."""

    @property
    def patience(self) -> float:
        """Seconds until there may be something to write whatever comes."""

    def notify(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there may be news. It must not block."""

    def wait(self) -> None:
        """For news, or until there may be something to write. Raises ClientGone."""

    def take(self, now: float) -> bytes | None:
        """What there is to write. Empty where the status line shall be sent, and nothing else."""

    def take_now(self, now: float) -> bytes:
        """What has come as news, once it `has_begun`. Neither waits nor looks."""


class Outlet:
    """One stream's way out, in chunks of HTTP/1.1."""

    __slots__ = (
        "_client",
        "_next_look",
        "_num_sent",
        "_num_taken",
        "_output",
        "_patience",
        "_rest",
        "_send_timeout",
        "_waits_since",
        "ended",
        "error",
        "next_turn",
        "num_bytes",
    )

    def __init__(self, output: Feed, send_timeout: float) -> None:
        self.num_bytes = 0  # of the body, that were taken from the output
        self.error: Exception | None = None  # what it has ended with
        self.ended = threading.Event()
        self.next_turn = 0.0  # by the monotonic clock, whatever comes
        self._output = output
        self._client = output.client
        self._send_timeout = send_timeout
        self._rest: bytes | memoryview = b""  # what the socket had no room for
        self._num_sent = 0
        self._num_taken = 0
        self._waits_since: float | None = None  # for the client to take something
        self._next_look = 0.0
        self._patience = 0.0  # of the output, as of the last look

    def notify(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there may be news. It must not block."""
        self._output.notify(wake)

    # Sender's thread

    def end(self) -> None:
        """Called once, when nothing more is written. Must not raise."""
        self.ended.set()

    def write(self, now: float) -> bool:
        """What there is, as far as the socket takes it; whether that was the end. Never waits.
        While the socket is full, what has come stays where it is. Raises ClientGone.
        """
        is_due = now >= self.next_turn
        if is_due:
            self._take_turn(now)
        if self._rest:
            return False
        piece = self._output.take_now(now)
        if is_due and not piece:
            piece = self._output.take(now) or b""
        if not piece:
            return self._output.is_finished
        self.num_bytes += len(piece)
        self._send(b"%X\r\n%b\r\n" % (len(piece), piece), now)
        return self._output.is_finished and not self._rest

    def _take_turn(self, now: float) -> None:
        if now >= self._next_look:
            self._look(now)
        self.next_turn = min(now + self._patience, self._next_look)
        if self._rest:
            self._send(self._rest, now)

    def _send(self, data: bytes | memoryview, now: float) -> None:
        count = self._client.send(data)
        self._num_sent += count
        if count == len(data):
            self._rest = b""
        else:
            self._rest = memoryview(data)[count:]
            self.next_turn = min(now + RETRY, self._next_look)

    def _look(self, now: float) -> None:
        """Is the client there, and takes it something? Else cut it off. The socket's own buffer
        holds megabytes, so that it has room says little.
        """
        self._next_look = now + LOOK
        self._client.check()
        self._patience = self._output.patience
        num_untaken = self._client.num_untaken()
        before, self._num_taken = self._num_taken, self._num_sent - num_untaken
        if not (num_untaken or self._rest):
            self._waits_since = None
        elif self._waits_since is None or self._num_taken > before:
            self._waits_since = now
        elif now - self._waits_since >= self._send_timeout:
            logger.info("a client has taken nothing for %g seconds", self._send_timeout)
            self._client.cut_off()
            raise ClientGone


class Sender:
    """Its thread runs while there are streams to be written."""

    def __init__(self) -> None:
        # None: there is news of an outlet that has come before.
        self._inbox: queue.SimpleQueue[Outlet | None] = queue.SimpleQueue()
        # One object for all, so that an engine sees at a glance that it is the same.
        self.wake: Callable[[], None] = partial(self._inbox.put, None)
        self._lock = threading.Lock()  # guards what follows
        self._num_outlets = 0

    # Request threads

    def start(self, outlet: Outlet) -> bool:
        """Have it written. False if the system has no thread for it."""
        with self._lock:
            if not self._num_outlets:
                try:
                    threading.Thread(target=self._run, name="sender", daemon=True).start()
                except RuntimeError as reason:
                    logger.warning("a request thread writes its stream itself: %s", reason)
                    return False
            self._num_outlets += 1
        outlet.notify(self.wake)
        self._inbox.put(outlet)
        return True

    def send(self, outlet: Outlet) -> bool:
        """Returns when all has been written; or at once, and False, if the system has no thread
        for it. Raises ClientGone, or what else has gone wrong.
        """
        if not self.start(outlet):
            return False
        outlet.ended.wait()
        error, outlet.error = outlet.error, None
        try:
            if error is not None:
                raise error
            return True
        finally:
            del error  # its traceback has this frame: the two would wait for a garbage collection

    # Sender's thread

    def _run(self) -> None:
        outlets: list[Outlet] = []
        num_left = 1
        while num_left:
            next_turn = min((outlet.next_turn for outlet in outlets), default=0.0)
            outlets += self._receive(next_turn - time.monotonic() if outlets else LOOK)
            now = time.monotonic()
            ended = {outlet for outlet in outlets if self._write(outlet, now)}
            if ended:
                outlets = [outlet for outlet in outlets if outlet not in ended]
            with self._lock:
                self._num_outlets -= len(ended)
                num_left = self._num_outlets
            for outlet in ended:
                outlet.end()

    def _receive(self, timeout: float) -> list[Outlet]:
        """New outlets. Waits for one, or for news, or at most `timeout` seconds."""
        outlets = []
        try:
            item = self._inbox.get(timeout=max(timeout, 0))
            while True:
                if item is not None:
                    outlets.append(item)
                item = self._inbox.get_nowait()
        except queue.Empty:
            return outlets

    def _write(self, outlet: Outlet, now: float) -> bool:
        """Whether it has ended. What goes wrong with one is its own end, not the others'."""
        try:
            return outlet.write(now)
        except Exception as error:
            outlet.error = error
            return True


class Streamed(flask.Response):
    """Behind the first text the sender writes it, if nobody stands between it and the socket."""

    def __init__(self, output: Feed, sender: Sender, send_timeout: float, mimetype: str) -> None:
        self._output = output
        self._pieces = self._write(sender, send_timeout)
        self.on_sent: Callable[[int], None] | None = None  # told the body's bytes at the end
        self._server: Any = None  # gunicorn's end of this response, if that is on a plain socket
        super().__init__(self._pieces, mimetype=mimetype)

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        pieces, status, headers = self.get_wsgi_response(environ)
        start_response(status, headers)
        if self.response is self._pieces:  # else something of the application takes part
            self._server = _plain_server(start_response, self._output.client)
        return pieces

    def _write(self, sender: Sender, send_timeout: float) -> Iterator[bytes]:
        output = self._output
        num_bytes = 0
        try:
            while True:
                piece = output.take(time.monotonic())
                if piece is not None:
                    num_bytes += len(piece)
                    yield piece  # the first has the head written, even if it is empty
                if output.is_finished:
                    return
                if self._server is not None and output.has_begun:
                    outlet = Outlet(output, send_timeout)
                    try:
                        if sender.send(outlet):
                            return
                    finally:
                        self._server.sent += outlet.num_bytes  # for its access log
                        num_bytes += outlet.num_bytes
                    self._server = None
                output.wait()
        finally:
            if self.on_sent is not None:
                self.on_sent(num_bytes)


def _plain_server(start_response: "StartResponse", client: Client) -> Any:
    """gunicorn's own response, whose method this is, if it writes chunks to a plain socket, that of
    `client`; else None. A middleware that changes what is written has a function of its own there.
    """
    server: Any = getattr(start_response, "__self__", None)
    kind = type(server)  # HTTP/2 has another one
    if f"{kind.__module__}.{kind.__name__}" != "gunicorn.http.wsgi.Response":
        return None
    is_plain = server.chunked and type(server.sock) is socket.socket and client.is_on(server.sock)
    return server if is_plain else None
