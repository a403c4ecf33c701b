"""gunicorn's threaded worker, which drains before it ends, and waits for no slow client.

What the methods replace was read in gunicorn 27.0.1.
"""

import contextlib
import errno
import math
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

from gunicorn import util
from gunicorn.workers.gthread import ThreadWorker

from switchyard import engine
from switchyard.app.http.alarms import ALARMS
from switchyard.app.services import KEY
from switchyard.server import limits

RELEASE = 5.0  # seconds for an engine to end its jobs and release its model
LAST_WRITES = 3.0  # seconds for the last bytes of responses once all jobs have ended
HEAD_TIMEOUT = 10.0  # seconds for a request's line and headers in all
ACCEPT_AGAIN = 1.0  # seconds without new connections once the system has had no room for one
BOOT_ERROR = 3  # the exit status of a worker after which gunicorn doesn't start another
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Worker(ThreadWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request = threading.local()  # the alarm of its head, whether its answer has begun
        self._shall_drain = threading.Event()
        self._accept_from = 0.0  # by the monotonic clock

    # Main thread

    def init_signals(self) -> None:
        super().init_signals()
        # A terminal sends it to the master and to us, and the master goes on to send SIGTERM.
        signal.signal(signal.SIGINT, self.handle_exit)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a terminal's too; the master answers it

    def load_wsgi(self) -> None:
        """With all threads that requests will need. One that can't be started later, because
        others have taken the last, would end the worker.
        """
        engine.keep_memory_small()  # before there are threads
        num_threads = self.cfg.threads
        self.log.info(
            "Threads: %d for requests, up to %d others; allowed: %s",
            num_threads,
            limits.OWN_THREADS,
            limits.threads_allowed(),
        )
        try:
            limits.start_threads(self.tpool, num_threads)
            threading.Thread(target=self._drain, name="drain", daemon=True).start()
            ALARMS.set(math.inf, lambda: None)  # their thread runs while there are any
        except RuntimeError as error:
            message = f"{error} beside {threading.active_count()}; see the limits above, or memory"
            print(f"switchyard: {message}", file=sys.stderr, flush=True)
            sys.exit(BOOT_ERROR)
        super().load_wsgi()

    def handle_exit(self, sig: int | None, frame: FrameType | None) -> None:
        """SIGTERM and SIGINT. gunicorn's own stops accepting at once and cuts off what is left."""
        if getattr(self, "wsgi", None) is None:  # not loaded yet
            super().handle_exit(sig, frame)
        else:
            self._shall_drain.set()

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """SIGQUIT, which the master sends at the second SIGINT or SIGTERM: the end, now."""
        threading.Thread(target=_exit_in, args=(LAST_WRITES,), name="quit", daemon=True).start()
        super().handle_quit(sig, frame)

    def set_accept_enabled(self, enabled: bool) -> None:
        """Asked for at each turn of the main loop."""
        super().set_accept_enabled(enabled and time.monotonic() >= self._accept_from)

    def accept(self, listener: Any) -> None:
        """gunicorn's own raises where there is no file or memory left, which ends the worker."""
        try:
            super().accept(listener)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.log.warning("No room for a new connection, next try in a second: %s", error)
            self._accept_from = time.monotonic() + ACCEPT_AGAIN
            self.set_accept_enabled(False)

    def enqueue_req(self, conn: Any) -> None:
        try:
            super().enqueue_req(conn)
        except RuntimeError as error:  # no thread, or the pool is closed
            self.log.error("A connection is closed: %s", error)
            self.nr_conns -= 1
            conn.close()

    # Drain's thread

    def _drain(self) -> None:
        self._shall_drain.wait()
        services = self.wsgi.extensions[KEY]
        deadline = time.monotonic() + services.settings.grace
        services.models.close(drain=services.settings.grace, timeout=RELEASE)
        super().handle_exit(None, None)  # until here, new requests got a 503 and probes an answer
        _exit_in(max(deadline - time.monotonic(), LAST_WRITES))  # however slow the last readers are

    # Request threads

    def handle(self, conn: Any) -> Any:
        self._request.is_answered = False
        self._request.alarm = ALARMS.set(HEAD_TIMEOUT, lambda: _stop_receiving(conn.sock))
        try:
            keep = super().handle(conn)
        except BaseException as error:  # such as a panic in Rust; gunicorn's main loop would end
            if self._request.is_answered:
                self.log.exception("A request has failed in the midst of its answer")
            else:
                self.handle_error(None, conn.sock, conn.client, error)
            keep = False
        finally:
            self._request.alarm.cancel()
        if keep is False:
            _linger(conn.sock)
        return keep

    def handle_request(self, req: Any, conn: Any) -> Any:
        self._request.alarm.cancel()  # here the request's head has been read
        return super().handle_request(req, conn)

    def note_answer(self, response: Any) -> None:
        """gunicorn's, of a request that ends, however; None if there has been none."""
        self._request.is_answered = response is not None and response.headers_sent


def _stop_receiving(sock: socket.socket) -> None:
    """As if the client had sent its end of file."""
    with contextlib.suppress(OSError):  # closed already
        socket.socket.shutdown(sock, socket.SHUT_RD)


def _linger(sock: socket.socket) -> None:
    """Wait for the client to close, for two seconds at the most.

    gunicorn does so on its main thread, for one connection after the other, and accepts no other
    meanwhile. After this its own wait is over at once.
    """
    if type(sock) is socket.socket:
        with contextlib.suppress(OSError):
            util.close_graceful(sock.dup())
    _stop_receiving(sock)


def _exit_in(seconds: float) -> None:
    """End the process unless it has ended by itself until then. Its status says that all is well:
    at exit, Python would wait for threads that wait for a client.
    """
    time.sleep(seconds)
    os._exit(0)
