"""gunicorn's configuration, with one threaded worker, which holds the model. Settings are in
app/config.py.
"""

import logging
import math
import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any, NoReturn

from gunicorn.glogging import Logger

from switchyard import app, engine
from switchyard.app.chat.trial import try_all
from switchyard.app.operations import logs
from switchyard.app.operations.keys import read_keys
from switchyard.server import address, limits
from switchyard.server.logger import JsonLogger
from switchyard.server.notifier import Notifier, Pulse
from switchyard.server.worker import BOOT_ERROR, LAST_WRITES, RELEASE, Worker

ONE_WORKER = (
    "switchyard: only one worker is supported: each would load its own model, and threads and CUDA"
    " do not survive a fork. For more requests at once, raise SWITCHYARD_MAX_BATCH_SIZE."
)
RELOAD = (
    " is refused: a second worker would load the model beside the first. To load new settings"
    " or another model, stop the server with SIGTERM and start it again."
)
PAUSE = 5.0  # seconds between turns of the master's loop, usually one; more means a pause
LOST = 1  # the exit status of a worker after which gunicorn starts another


def _stop(message: str, status: int = 1) -> NoReturn:
    """Ends the process immediately. With --preload, torch may be half-imported, and would print
    errors during an orderly exit.
    """
    logs.say(message, log_format, is_error=True)
    os._exit(status)


def _try(served: Sequence[engine.Served]) -> None:
    """Tests model directories in the master, so that workers, which are forks of it, needn't test
    them again. Raises ModelError.
    """
    if served:
        names = ", ".join(one.config.name for one in served)
        logs.say(f"Testing the files of {names} in a separate process", log_format)
    for error in try_all(served).values():
        raise error


log_format: logs.LogFormat = "text"  # until the settings are read
limits.open_standard_streams()
notifier = Notifier.take(os.environ)
try:
    limits.check_temporary_directory(None)  # used by gunicorn and the libraries
except OSError as error:
    _stop(f"switchyard: no temporary directory can be written to: {error}")
try:
    settings = app.read_settings()
    log_format = settings.log_format
    _try([one for one in settings.served() if one.load == "start"])  # others fail on their own
    if settings.keys_file:
        read_keys(settings.keys_file, settings.max_priority, bool(settings.ledger))
except app.SettingsError as error:
    _stop(f"switchyard: {error}")
except engine.ModelError as error:
    _stop(f"switchyard: {error}", BOOT_ERROR)

wsgi_app = "switchyard.server.wsgi:app"
bind = settings.bind
workers = 1
worker_class = Worker
# Surplus connections, including health checks, wait in an unbounded queue. So there are more
# threads than jobs that the engine accepts.
threads = settings.num_threads
num_files = limits.raise_open_files()
worker_connections = limits.max_connections(threads, num_files)
if worker_connections <= threads:
    _stop(
        f"switchyard: {num_files} open files (ulimit -n) are too few for {threads} request threads:"
        f" at least {2 * threads + limits.OWN_FILES + 1} are needed"
    )
preload_app = False  # the model is loaded in the worker, on its engine thread
# The drain must end before gunicorn kills the worker.
graceful_timeout = math.ceil(settings.grace + RELEASE + LAST_WRITES) + 10
# Seconds for which the worker's main thread may be silent. It never waits for the model, whose
# hangs the watchdog must detect first. The only other cause of silence is a GIL held forever.
timeout = math.ceil(settings.hang_exit) + 60
keepalive = 5
forwarder_headers = ""  # clients must not set the application's path
umask = 0o177  # of a Unix socket: admits only its owner; `--umask 0o117` also admits its group
control_socket_disable = True  # all servers of a user share its path, and it can add workers
loglevel = settings.log_level.lower()
logger_class = JsonLogger if settings.log_format == "json" else Logger


def on_starting(server: Any) -> None:
    if server.cfg.workers != 1 or int(os.environ.get("WEB_CONCURRENCY") or 1) != 1:
        _stop(ONE_WORKER)
    if server.cfg.worker_class is not Worker:
        _stop(
            f"switchyard: works only with its own worker class, not {server.cfg.worker_class_str}"
        )
    if server.cfg.preload_app:
        _stop("switchyard: preload is not supported: threads and CUDA do not survive a fork")
    is_inherited = "LISTEN_FDS" in os.environ  # from systemd: gunicorn binds no address
    for bind in () if is_inherited else server.cfg.bind:
        # gunicorn would try for six seconds, with two lines a second.
        if reason := address.refusal_after(bind, settings.bind_wait, server.log.info):
            _stop(f"switchyard: {reason}")
    open_to_all = [place for place in server.cfg.address if not _is_private(place)]
    if open_to_all and not settings.keys_file:
        server.log.warning(
            "There are no API keys: any client that reaches %s may use the model, and see and end"
            " all requests (docs/operations.md, keys_file)",
            ", ".join(f"{host}:{port}" for host, port, *_ in open_to_all),
        )
    server.log.info(
        "Open files: %d (ulimit -n), for up to %d connections",
        num_files,
        server.cfg.worker_connections,
    )


def _is_private(address: Any) -> bool:
    """Whether only this machine can reach the address: loopback, a Unix socket, or an inherited
    socket.
    """
    if not isinstance(address, tuple):
        return True
    return address[0] in ("localhost", "::1") or address[0].startswith("127.")


class Patience:
    """Lets the master check its worker once a second, but skips the first check after a pause. If
    the machine or the container was paused, the worker was paused too, and has not yet given a sign
    of life.
    """

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        self._last = time.monotonic()

    def __call__(self) -> None:
        now = time.monotonic()
        before, self._last = self._last, now
        if now - before < PAUSE:
            self._look()


def when_ready(server: Any) -> None:
    """Sets signal handlers in the master. The first SIGTERM or SIGINT drains the server, and the
    second ends it immediately.
    """
    signals = iter([signal.SIGTERM])

    def end(signum: int, frame: FrameType | None) -> None:
        number = next(signals, signal.SIGQUIT)
        if number == signal.SIGTERM:
            notifier.tell_end(graceful_timeout)
        server.signal(number, frame)

    # For /admin/drain in the worker; a supervisor may send its first signal later.
    def drain(signum: int, frame: FrameType | None) -> None:
        notifier.tell_end(graceful_timeout)
        server.signal(signal.SIGTERM, frame)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGRTMIN, drain)
    server.log.error_log.addFilter(_is_news)
    server.murder_workers = Patience(server.murder_workers)
    server.handle_hup = lambda: server.log.error("SIGHUP" + RELOAD)
    server.handle_usr2 = lambda: server.log.error("SIGUSR2" + RELOAD)


def _is_news(record: logging.LogRecord) -> bool:
    """Returns False for two of gunicorn's log lines about a worker that could not load the model,
    because that failure has already been reported.
    """
    is_exit = str(record.msg).startswith("Worker (pid:%s) exited") and record.args
    is_boot_error = isinstance(is_exit, tuple) and is_exit[-1] == BOOT_ERROR
    return not is_boot_error and record.args != ("Worker failed to boot.",)


def nworkers_changed(server: Any, new_value: int, old_value: int | None) -> None:
    if old_value is not None and new_value > 1:  # SIGTTIN
        server.log.error(ONE_WORKER)
        server.num_workers = 1


def post_fork(server: Any, worker: Any) -> None:
    notifier.tell("WATCHDOG=1")  # the next sign of life comes after torch's import


def post_worker_init(worker: Any) -> None:
    from switchyard.server import wsgi

    if notifier.is_on:
        pulse = Pulse(notifier, wsgi.models)
        threading.Thread(target=pulse.run, name="pulse", daemon=True).start()
    args = (worker, wsgi, *_address(worker.sockets[0]))
    threading.Thread(target=_watch, args=args, name="watch", daemon=True).start()


def post_request(worker: Any, req: Any, environ: Any, resp: Any) -> None:
    worker.note_answer(resp)


def worker_int(worker: Any) -> None:
    _close_models(1)  # the master waits two seconds


def worker_exit(server: Any, worker: Any) -> None:
    _close_models(RELEASE)


def _close_models(timeout: float) -> None:
    # Missing in the master, and if the import failed.
    wsgi = sys.modules.get("switchyard.server.wsgi")
    if wsgi is not None:
        wsgi.models.close(timeout=timeout)  # bounded: a loading model may take longer


def _address(listener: Any) -> tuple[str, str]:
    """The server's address, and curl's arguments for it."""
    where = str(listener)
    if listener.FAMILY == socket.AF_UNIX:
        path = shlex.quote(where.removeprefix("unix:"))
        return where, f"--unix-socket {path} http://localhost"
    return where, where


def _watch(worker: Worker, wsgi: ModuleType, where: str, url: str) -> None:
    """Logs the address once the model is warm. Ends the process when an engine is lost for good. If
    the engine could not even load, the exit status is BOOT_ERROR; otherwise gunicorn starts another
    worker.
    """
    models: engine.Models = wsgi.models
    if models.wait_until_loaded():
        key = "-H 'Authorization: Bearer KEY' " if settings.keys_file else ""
        logs.say(
            f"Switchyard serves {', '.join(models.names)} at {where}\n"
            f"Try: curl -N {url}/v1/completions {key}-H 'Content-Type: application/json'"
            ' -d \'{"prompt": "Once upon a time", "max_tokens": 32, "stream": true}\'',
            log_format,
        )
        notifier.tell("READY=1")
        status = LOST
    else:
        status = BOOT_ERROR
    while (lost := models.wait_until_stopped()) is not None:
        if lost.error is not None:  # None: told to stop
            if status == LOST:
                worker.make_room(status)
            wsgi.logs.stop()  # writes the last line
            os._exit(status)
