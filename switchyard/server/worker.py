"""gunicorn's threaded worker, which drains before it ends, and doesn't wait for slow clients.

The methods that it replaces are gunicorn 27.0.1's.
"""

import contextlib
import errno
import math
import os
import queue
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from gunicorn.workers.gthread import ThreadWorker

from switchyard import engine
from switchyard.app import Settings
from switchyard.app.operations.logs import say
from switchyard.app.services import KEY
from switchyard.server import limits
from switchyard.server.connection import Connection
from switchyard.server.logger import JsonLogger
from switchyard.server.threads.entrance import Entrance
from switchyard.server.threads.request_threads import RequestThreads
from switchyard.server.threads.thread_pool import RequestPool

RELEASE = 5.0  # seconds for an engine to end its jobs and release its model
LAST_WRITES = 3.0  # seconds for the last bytes of responses once all jobs have ended
HEAD_TIMEOUT = 10.0  # seconds for the whole head of a request
LINGER = 2.0  # seconds for a client to close after its last answer
DISCARD = 10.0  # seconds in which the rest of an unread body is received and dropped
ACCEPT_AGAIN = 1.0  # seconds without accepting after the system had no room for a connection
BOOT_ERROR = 3  # the exit status of a worker after which gunicorn doesn't start another
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Worker(ThreadWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The thread's connection, the alarm of its head, whether its answer has begun.
        self._request = threading.local()
        # A signal can interrupt a signal handler, in which an Event's lock would deadlock.
        self._shall_drain: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._accept_from = 0.0  # time from which to accept, by the monotonic clock
        # gunicorn itself handles TLS and HTTP/2.
        self._is_plain = not (self.cfg.is_ssl or "h2" in self.cfg.http_protocols)
        # Connections on the poller, in order of arrival, with their handlers.
        self._waiting: dict[Connection, Callable[[Connection, Any], None]] = {}
        self._next_look = 0.0  # time of the next check of deadlines
        self._entrance = Entrance(
            self.enqueue_req,
            self._turn_away,
            self.worker_connections // 2,
            Connection.has_left,
            self._close_later,
        )
        self._waste = bytearray(65536)

    # Main thread

    def init_signals(self) -> None:
        super().init_signals()
        # A terminal sends SIGINT to master and worker, and the master then sends SIGTERM.
        signal.signal(signal.SIGINT, self.handle_exit)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # also from a terminal; the master handles it
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # perhaps sent to all processes of a service

    def get_thread_pool(self) -> RequestPool:
        return RequestPool(self.cfg.threads)

    def load_wsgi(self) -> None:
        """Starts all request threads before the load, because a failure to start a thread later
        would end the worker.
        """
        engine.keep_memory_small()  # before any thread
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
            engine.ALARMS.set(math.inf, lambda: None)  # keeps the alarms' thread running
        except RuntimeError as error:
            number = threading.active_count()
            message = (
                f"{error} in addition to {number}; check the limits above, and the free memory"
            )
            is_json = isinstance(self.log, JsonLogger)
            say(f"switchyard: {message}", "json" if is_json else "text", is_error=True)
            sys.exit(BOOT_ERROR)
        super().load_wsgi()
        self._settings = self.wsgi.extensions[KEY].settings
        # The other half of the reserve is for clients that are still reading their answers.
        threads = self._threads = RequestThreads(
            num_threads, self._settings.reserve_threads // 2, self._entrance.leave
        )
        told = self.wsgi.extensions[KEY].threads
        told.count = lambda: (threads.num_busy, threads.number)
        told.on_prepared = self._leave_entrance
        if self._is_plain:
            told.detach = self._detach
            # As many connections as threads, and half of the others, are kept for requests.
            told.max_detached = (self.worker_connections - num_threads) // 2

    def handle_exit(self, sig: int | None, frame: FrameType | None) -> None:
        """Drains on SIGTERM and SIGINT. gunicorn's own handler would immediately stop accepting
        connections, and would cut off responses.
        """
        if getattr(self, "wsgi", None) is None:  # not loaded
            super().handle_exit(sig, frame)
        else:
            self._shall_drain.put(None)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """Ends the worker immediately on SIGQUIT, which the master sends on the second SIGINT or
        SIGTERM.
        """
        threading.Thread(target=_exit_in, args=(LAST_WRITES,), name="quit", daemon=True).start()
        super().handle_quit(sig, frame)

    def set_accept_enabled(self, enabled: bool) -> None:
        """Called in each turn of the main loop."""
        super().set_accept_enabled(enabled and time.monotonic() >= self._accept_from)

    def accept(self, listener: Any) -> None:
        """Accepts all waiting connections, unless there are too many. If a turn accepted only one
        connection, the others would wait for everything else that happens in a turn. If there is no
        free file or memory, gunicorn's own method raises an error, which ends the worker.
        """
        while self._accept_one(listener) and self.nr_conns < self.worker_connections:
            pass

    def _accept_one(self, listener: Any) -> bool:
        """Returns whether there may be another connection."""
        try:
            if self._is_plain:
                sock, client = listener.accept()
            else:
                super().accept(listener)
                return False
        except OSError as error:
            if error.errno in NO_ROOM:
                self.log.warning("No room for a new connection; retrying in a second: %s", error)
                self._accept_from = time.monotonic() + ACCEPT_AGAIN
                self.set_accept_enabled(False)
            elif error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                raise
            return False
        connection = Connection(self.cfg, sock, client, listener.getsockname(), self._threads)
        self.nr_conns += 1
        if self.nr_conns >= self.worker_connections and self._waiting:
            self._give_up(next(iter(self._waiting)), force=True)
        connection.limit_sends(self._settings.send_timeout)
        self._wait_for_request(connection, HEAD_TIMEOUT, is_new=True)
        return True

    def enqueue_req(self, conn: Any) -> None:
        try:
            super().enqueue_req(conn)
        except RuntimeError as error:  # no thread is free, or the pool is closed
            self.log.error("A connection was closed: %s", error)
            self.nr_conns -= 1
            conn.close()

    def finish_request(self, conn: Any, fs: Any) -> None:
        if not isinstance(conn, Connection):
            super().finish_request(conn, fs)
        elif conn.is_detached:
            pass  # the detached stream ends it
        elif not fs.cancelled() and fs.result():
            self._wait_for_request(conn, self.cfg.keepalive)
        else:
            self._wait_for_end(conn)

    def murder_keepalived(self, force: bool = False) -> None:
        """Called in each turn of the main loop."""
        super().murder_keepalived(force)
        self._entrance.look()
        now = time.monotonic()
        if now >= self._next_look or force or not self.alive:
            self._next_look = now + 1
            for connection in [c for c in self._waiting if c.deadline <= now or force]:
                self._give_up(connection, force)

    def _give_up(self, connection: Connection, force: bool) -> None:
        """Called at a deadline. First reads any data that has arrived, because this thread may
        itself be late.
        """
        self._waiting[connection](connection, None)
        if connection not in self._waiting:
            return
        if connection.has_head and not force:  # the answer says that the body is late
            connection.is_late = True
            self._begin(connection)
        else:
            self._close(connection)

    def _cap_keepalive(self, deadline: float) -> None:
        """Called before the worker ends."""
        super()._cap_keepalive(deadline)
        self._entrance.open()
        for connection in self._waiting:
            connection.deadline = min(connection.deadline, deadline)

    def _wait_for_request(
        self, connection: Connection, begin_within: float, is_new: bool = False
    ) -> None:
        try:
            seconds = begin_within, HEAD_TIMEOUT, self._settings.body_timeout
            if not self.alive:
                seconds = LINGER, LINGER, LINGER
            connection.wait_for_request(*seconds, time.monotonic())
            if is_new and not connection.receive_first():
                self._close(connection)
            elif connection.buffer and connection.has_request():
                self._dispatch(connection)
            else:
                self._wait(connection, self._on_request)
        except OSError:
            self._close(connection)

    def _wait_for_end(self, connection: Connection) -> None:
        """Waits for the client to close the connection. An immediate close would reset a connection
        with unread bytes, and its client might never see the response.
        """
        is_read = connection.body is None or connection.body.is_over
        try:
            connection.wait_for_end(LINGER if is_read else DISCARD, time.monotonic())
            self._wait(connection, self._on_rest)
        except OSError:  # closed already
            self._close(connection)

    def _wait(self, connection: Connection, on_readable: Callable[[Connection, Any], None]) -> None:
        self._waiting[connection] = on_readable
        self.poller.register(
            connection.sock, selectors.EVENT_READ, partial(on_readable, connection)
        )

    def _on_request(self, connection: Connection, sock: Any) -> None:
        if connection not in self._waiting:
            return  # closed in this turn
        try:
            if connection.receive():
                if connection.has_request():
                    self._begin(connection)
            elif connection.has_head:  # the answer says that the body is cut off
                self._begin(connection)
            else:
                self._close(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)

    def _on_rest(self, connection: Connection, sock: Any) -> None:
        try:
            if connection in self._waiting and not connection.discard(self._waste):
                self._close(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._close(connection)

    def _begin(self, connection: Connection) -> None:
        self._forget(connection)
        self._dispatch(connection)

    def _dispatch(self, connection: Connection) -> None:
        if connection.is_post:
            self._entrance.enter(connection)
        else:
            self.enqueue_req(connection)

    def _turn_away(self, connection: Connection) -> None:
        """Gives a request a thread that refuses its body."""
        connection.is_turned_away = True
        self.enqueue_req(connection)

    def _close_later(self, connection: Connection) -> None:
        self.method_queue.defer(self._close, connection)

    def _forget(self, connection: Connection) -> None:
        if connection in self._waiting:
            del self._waiting[connection]
            self.poller.unregister(connection.sock)

    def _close(self, connection: Connection) -> None:
        self._forget(connection)
        self.nr_conns -= 1
        connection.close()

    # Drain's thread

    def _drain(self) -> None:
        self._shall_drain.get()
        services = self.wsgi.extensions[KEY]
        _announce(services.models, services.settings)
        deadline = time.monotonic() + services.settings.grace
        services.models.close(drain=services.settings.grace, timeout=RELEASE)
        super().handle_exit(None, None)  # until here, new requests got a 503 and probes an answer
        _exit_in(max(deadline - time.monotonic(), LAST_WRITES))  # a bound for slow readers

    # Watch's thread

    def make_room(self, status: int) -> None:
        """Ends this worker, so that the master starts another. New connections wait for the new
        worker; responses in progress are completed. `status`: the exit status if the process does
        not end by itself in time.
        """
        super().handle_exit(None, None)
        _exit_in(LAST_WRITES, status)

    # Request threads

    def handle(self, conn: Any) -> Any:
        self._request.is_answered = self._request.is_refused = False
        self._request.connection = conn
        self._request.alarm = None
        if isinstance(conn, Connection):
            if conn.has_left():
                return False
        else:
            self._request.alarm = engine.ALARMS.set(
                HEAD_TIMEOUT, lambda: _stop_receiving(conn.sock)
            )
        self._threads.enter(conn)
        try:
            keep = super().handle(conn)
        except BaseException as error:  # a Rust panic would end the main loop
            if self._request.is_answered:
                self.log.exception("A request failed in the middle of its response")
            else:
                self.handle_error(None, conn.sock, conn.client, error)
            keep = False
        finally:
            self._threads.leave(conn)
            self._entrance.leave(conn, self._request.is_refused)
            self._request.connection = None
            self._cancel_alarm()
        if keep is False and not isinstance(conn, Connection):
            _stop_receiving(conn.sock)  # or gunicorn's main thread would wait for the client
        return keep

    def handle_request(self, req: Any, conn: Any) -> Any:
        self._cancel_alarm()  # the head has been read
        return super().handle_request(req, conn)

    def _keepalive_after(self, conn: Any, keepalive: Any) -> bool:
        """Replaces gunicorn's own method, which would make a request thread wait for the rest of a
        body.
        """
        if isinstance(conn, Connection):
            return bool(keepalive) and conn.body is not None and conn.body.skip()
        return bool(super()._keepalive_after(conn, keepalive))

    def _detach(self) -> Callable[[], None]:
        """Detaches the current connection from its thread. The returned function ends it."""
        conn = self._request.connection
        conn.is_detached = True
        return partial(self.method_queue.defer, self._wait_for_end, conn)

    def _leave_entrance(self) -> None:
        """Called when the current request has submitted its jobs or waits, possibly on another
        thread.
        """
        if (conn := getattr(self._request, "connection", None)) is not None:
            self._entrance.leave(conn)

    def _cancel_alarm(self) -> None:
        if self._request.alarm is not None:
            self._request.alarm.cancel()

    def note_answer(self, response: Any) -> None:
        """`response`: gunicorn's response to a request that has ended, or None if there is none."""
        self._request.is_answered = response is not None and response.headers_sent
        self._request.is_refused = not self._request.is_answered or response.status_code >= 400


def _stop_receiving(sock: socket.socket) -> None:
    """Makes the socket appear as if the client had closed its sending side."""
    with contextlib.suppress(OSError):  # closed already
        socket.socket.shutdown(sock, socket.SHUT_RD)


def _announce(models: engine.Models, settings: Settings) -> None:
    """Prints the number of requests that the drain waits for."""
    jobs = [job for model in models.engines for job in model.jobs(timeout=0)]
    if number := len({job.request_id for job in jobs}):
        requests = f"{number} request{'s' * (number > 1)}"
        with contextlib.suppress(OSError, ValueError):  # no stdout
            say(
                f"switchyard: finishing {requests}, for at most {settings.grace:g} s; "
                "a second Ctrl-C or SIGTERM ends the server now",
                settings.log_format,
            )


def _exit_in(seconds: float, status: int = 0) -> None:
    """Ends the process after `seconds` if it has not ended by then, by default with success. An
    ordinary exit would wait for threads that are waiting for clients.
    """
    time.sleep(seconds)
    os._exit(status)
