"""The composition root: settings -> models -> app. `gunicorn`, `flask run` and waitress serve it.

Importing this module starts to load the model, on its engine thread, in the importing process.
"""

import atexit
import contextlib
import ctypes
import gc
import logging
import logging.handlers
import os
import queue
import signal
import sys

import flask

import app as switchyard
import engine

# malloc.h: M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, the latter two in bytes.
MALLOC = {-8: 1, -3: 1 << 20, -1: 4 << 20}


def log_to_stderr(level: str) -> None:
    """From a thread of its own: the engine thread must not wait for a terminal or a disk."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    listener = logging.handlers.QueueListener(records, handler)
    for name in ("app", "engine"):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(logging.handlers.QueueHandler(records))
        logger.propagate = False
    listener.start()
    atexit.register(listener.stop)


def compose() -> tuple[engine.Models, flask.Flask]:
    settings = switchyard.read_settings()
    log_to_stderr(settings.log_level)
    models = engine.Models([engine.open_engine(settings.engine_config())])
    is_gunicorn = os.environ.get("SERVER_SOFTWARE", "").startswith(
        "gunicorn/"
    )  # its master's doing
    return models, switchyard.create_app(settings, models, terminate if is_gunicorn else None)


def keep_memory_small() -> None:
    """Large tensors come and go. glibc would serve them from heaps, up to eight a core, that fall
    into pieces and never shrink: a process that needs as much as before, and holds more by the
    hour. So one heap for all threads; what is large is mapped by itself and returned when freed.
    """
    if any(name.startswith("MALLOC_") for name in os.environ):
        return  # the operator's own choice
    with contextlib.suppress(OSError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in MALLOC.items():
            mallopt(option, value)


def terminate() -> None:
    """Have gunicorn's master drain, as at SIGTERM: it starts no other worker then."""
    os.kill(os.getppid(), signal.SIGRTMIN)


keep_memory_small()  # before there are threads
try:
    models, app = compose()
except (switchyard.SettingsError, engine.ModelError) as error:
    print(f"switchyard: {error}", file=sys.stderr, flush=True)
    sys.exit(3)  # gunicorn would start another worker after any other status
# At the default of 700 objects, parsing a body of a million lists looks through all of them again
# and again, half a second in which no other thread runs.
gc.set_threshold(50_000)
models.start()
atexit.register(models.close)
