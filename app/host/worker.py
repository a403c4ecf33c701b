"""The WSGI worker of a host application: whether the worker is ending, and warnings about its
setup.
"""

import functools
import importlib
import logging
import signal
import sys
from typing import Any

logger = logging.getLogger(__name__)

SYNC = (
    "gunicorn's sync worker handles one request at a time, including health checks, and is killed"
    " if a request takes longer than --timeout; --threads 16 selects a threaded worker"
)
THREADLESS = "without --threads, uWSGI generates text only while it handles a request"


def is_ending() -> bool:
    """Whether gunicorn's worker accepts no more requests, and only waits for running requests.

    False under any other server, where SIGTERM ends the process at once.
    """
    return getattr(_gunicorn(), "alive", True) is False


def hint(has_models: bool) -> None:
    """Logs a warning if the WSGI server's worker type, threads or number of processes doesn't suit
    the extension. Each warning is logged once.

    `has_models`: whether this process loads models itself.
    """
    found = []
    worker = _gunicorn()
    num_workers = getattr(getattr(worker, "cfg", None), "workers", 1)
    if type(worker).__module__ == "gunicorn.workers.sync":
        found.append(SYNC)
    if "uwsgi" in sys.modules:
        uwsgi = importlib.import_module("uwsgi")
        num_workers = uwsgi.numproc
        if has_models and not {"threads", "enable-threads"} & uwsgi.opt.keys():
            found.append(THREADLESS)
    if has_models and num_workers > 1:
        found.append(
            f"each of {num_workers} worker processes loads its own models: use one process with"
            " threads, or client mode with url"
        )
    if found:
        _warn("; ".join(found))


@functools.cache
def _warn(remark: str) -> None:
    logger.warning("%s (docs/flask.md)", remark)


def _gunicorn() -> Any:
    """gunicorn's worker, found through its method that handles SIGTERM. None under other
    servers.
    """
    return getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
