"""The composition root: settings -> models -> app. `gunicorn`, `flask run` and waitress serve it.

Importing this module starts to load the model, on its engine thread, in the importing process.
"""

import atexit
import gc
import logging
import logging.handlers
import os
import queue
import signal
import sys

import flask

from switchyard import engine
from switchyard.app import SettingsError, create_app, read_settings
from switchyard.app.services import KEY, Services


def log_to_stderr(level: str) -> None:
    """From a thread of its own: the engine thread must not wait for a terminal or a disk."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    listener = logging.handlers.QueueListener(records, handler)
    logger = logging.getLogger("switchyard")
    logger.setLevel(level)
    logger.addHandler(logging.handlers.QueueHandler(records))
    logger.propagate = False
    listener.start()
    atexit.register(listener.stop)


def compose() -> tuple[engine.Models, flask.Flask]:
    settings = read_settings()
    log_to_stderr(settings.log_level)
    opened = engine.open_engine(settings.engine_config())
    models = engine.Models([opened], settings.model_aliases)
    is_gunicorn = os.environ.get("SERVER_SOFTWARE", "").startswith(
        "gunicorn/"
    )  # its master's doing
    app = create_app(settings, models, terminate if is_gunicorn else None)
    services: Services = app.extensions[KEY]
    if services.checks is not None:
        services.checks.keyring.watch()
    return models, app


def terminate() -> None:
    """Have gunicorn's master drain, as at SIGTERM: it starts no other worker then."""
    os.kill(os.getppid(), signal.SIGRTMIN)


engine.keep_memory_small()  # before there are threads
try:
    models, app = compose()
except (SettingsError, engine.ModelError) as error:
    print(f"switchyard: {error}", file=sys.stderr, flush=True)
    sys.exit(3)  # gunicorn would start another worker after any other status
# At the default of 700 objects, parsing a body of a million lists looks through all of them again
# and again, half a second in which no other thread runs.
gc.set_threshold(50_000)
models.start()
atexit.register(models.close)
