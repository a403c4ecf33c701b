"""The sender: one thread that writes all streams, if the WSGI server allows this.

Waking a thread for each token of each stream would cost several times as much as the token itself.
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

RETRY = 0.01  # seconds between two attempts to write to a full socket


class Feed(Protocol):
    """A source of bytes for one client, such as `Output`. Used by the writing thread."""

    @property
    def client(self) -> WatchedClient: ...

    @property
    def is_finished(self) -> bool:
        """Whether nothing more will come. One more piece may remain for `take`."""

    @property
    def has_begun(self) -> bool:
        """Whether the sender may write this feed from now on."""

    @property
    def patience(self) -> float:
        """Seconds until a piece may be due even if nothing new arrives."""

    def notify(self, wake: Callable[[], None]) -> None:
        """Registers `wake`, which is called when there may be more to write. `wake` must not
        block.
        """

    def wait(self) -> None:
        """Waits at most `patience` seconds for something new. Raises ClientGone."""

    def take(self, now: float) -> bytes | None:
        """The next piece. Returns empty bytes if only the response's headers are to be sent, and
        None if nothing is due.
        """

    def take_now(self, now: float) -> bytes:
        """Everything new as one piece, once the feed `has_begun`. Never waits, and never checks the
        client.
        """


class Outlet:
    """The sender's end of one stream. Writes HTTP/1.1 chunks."""

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
        self.num_bytes = 0  # bytes of the body that have been taken from the output
        self.error: Exception | None = None  # the error that ended the stream
        self.ended = threading.Event()
        # The time of the next turn, by the monotonic clock, even if nothing new arrives.
        self.next_turn = 0.0
        self._output = output
        self._client = output.client
        self._send_timeout = send_timeout
        self._rest: bytes | memoryview = b""  # bytes that did not fit into the socket's buffer
        self._num_sent = 0
        self._num_taken = 0
        # The time since which the client has acknowledged nothing.
        self._waits_since: float | None = None
        self._next_look = 0.0
        self._patience = 0.0  # the output's patience at the last check

    def notify(self, wake: Callable[[], None]) -> None:
        """Registers `wake`, which is called when there may be more to write. `wake` must not
        block.
        """
        self._output.notify(wake)

    # Sender's thread

    def end(self) -> None:
        """Called once, after the last write. Must not raise an exception."""
        self.ended.set()

    def write(self, now: float) -> bool:
        """Writes as many of the next bytes as the socket accepts. Returns whether the stream has
        ended.

        Never waits. While the socket is full, new frames stay in the output. Raises ClientGone.
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
        """Checks the client. Resets the connection if the client has acknowledged nothing for
        `send_timeout`. The socket's buffer holds megabytes, so free room in it doesn't show that
        the client is reading.
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
            logger.info("a client has received nothing for %g seconds", self._send_timeout)
            self._client.cut_off()
            raise ClientGone


class Sender:
    """Writes all streams with one thread, which runs while there are streams."""

    def __init__(self) -> None:
        # A new outlet; None: an earlier outlet may have something new.
        self._inbox: queue.SimpleQueue[Outlet | None] = queue.SimpleQueue()
        # One object for all streams. An engine compares by identity, and wakes once for all of
        # them.
        self.wake: Callable[[], None] = partial(self._inbox.put, None)
        self._lock = threading.Lock()  # guards the fields below
        self._num_outlets = 0

    # Request threads

    def start(self, outlet: Outlet) -> bool:
        """Hands an outlet to the sender's thread. Returns False if no thread can be started."""
        with self._lock:
            if not self._num_outlets:
                try:
                    threading.Thread(target=self._run, name="sender", daemon=True).start()
                except RuntimeError as reason:
                    logger.warning("a request thread writes its own stream: %s", reason)
                    return False
            self._num_outlets += 1
        outlet.notify(self.wake)
        self._inbox.put(outlet)
        return True

    def send(self, outlet: Outlet) -> bool:
        """Has the sender's thread write all of an outlet's stream, and waits until the stream has
        ended.

        Returns False immediately if the system can't start a thread. Raises ClientGone, or any
        other error of the outlet.
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
            # The error and this frame form a cycle, which only the garbage collector would free.
            del error

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
        """Returns new outlets. Waits at most `timeout` seconds for an outlet or for something new
        to write.
        """
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
        """Writes to one outlet. Returns whether the outlet has ended. An error ends only this
        outlet.
        """
        try:
            return outlet.write(now)
        except Exception as error:
            outlet.error = error
            return True


class Streamed(flask.Response):
    """A streamed response. The sender takes over writing after the first text. The sender needs
    gunicorn's plain socket, without TLS, and no middleware that changes the body.
    """

    def __init__(self, output: Feed, sender: Sender, send_timeout: float, mimetype: str) -> None:
        self._output = output
        self._pieces = self._write(sender, send_timeout)
        # Called at the end with the number of body bytes.
        self.on_sent: Callable[[int], None] | None = None
        self._server: Any = None  # gunicorn's own response object, if it writes to a plain socket
        super().__init__(self._pieces, mimetype=mimetype)

    def __call__(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        pieces, status, headers = self.get_wsgi_response(environ)
        start_response(status, headers)
        if self.response is self._pieces:  # otherwise the application has wrapped the body
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
                    yield piece  # even an empty first piece makes the server write the headers
                if output.is_finished:
                    return
                if self._server is not None and output.has_begun:
                    outlet = Outlet(output, send_timeout)
                    try:
                        if sender.send(outlet):
                            return
                    finally:
                        self._server.sent += outlet.num_bytes  # for gunicorn's access log
                        num_bytes += outlet.num_bytes
                    self._server = None
                output.wait()
        finally:
            if self.on_sent is not None:
                self.on_sent(num_bytes)


def _plain_server(start_response: "StartResponse", client: Client) -> Any:
    """gunicorn's response object if it writes chunks to the plain socket of `client`; otherwise
    None.

    `start_response` is a bound method of this object, unless a middleware has replaced it.
    """
    server: Any = getattr(start_response, "__self__", None)
    kind = type(server)  # HTTP/2 has a different class
    if f"{kind.__module__}.{kind.__name__}" != "gunicorn.http.wsgi.Response":
        return None
    is_plain = server.chunked and type(server.sock) is socket.socket and client.is_on(server.sock)
    return server if is_plain else None
