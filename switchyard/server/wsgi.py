"""The composition root: settings -> models -> app. `gunicorn`, `flask run` and waitress serve the
app.

Importing this module starts loading the model, on its engine thread, in this process.
"""

import atexit
import gc
import logging
import os
import signal
import sys

import flask
import prometheus_client

from switchyard import engine, server
from switchyard.app import Settings, SettingsError, create_app, read_settings
from switchyard.app.blueprint import open_models
from switchyard.app.operations.logs import LogFormat, listen, say
from switchyard.app.services import KEY, Services


def compose(settings: Settings) -> tuple[engine.Models, flask.Flask]:
    models = open_models(settings)
    app = create_app(settings, models, terminate if has_master() else None)
    services: Services = app.extensions[KEY]
    if services.checks is not None:
        services.checks.keyring.watch()
    if services.ledger is not None:
        services.ledger.start()
        atexit.register(services.ledger.close)  # after the models: last in, first out
    return models, app


def has_master() -> bool:
    """Whether gunicorn's master is running, according to its environment variable."""
    return os.environ.get("SERVER_SOFTWARE", "").startswith("gunicorn/")


def terminate() -> None:
    """Makes gunicorn's master drain, as on SIGTERM, so that it starts no other worker."""
    os.kill(os.getppid(), signal.SIGRTMIN)


engine.keep_memory_small()  # before any thread
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # not useful here
log_format: LogFormat = "text"  # until the settings are read
try:
    settings = read_settings()
    log_format = settings.log_format
    logs = listen(settings.log_level, settings.log_format, settings.access_log)
    models, app = compose(settings)
except (SettingsError, engine.ModelError) as error:
    say(f"switchyard: {error}", log_format, is_error=True)
    sys.exit(3)  # after any other status, gunicorn starts another worker
if server.ignored_directory is not None:
    logging.getLogger("switchyard.server").warning(
        "PROMETHEUS_MULTIPROC_DIR is ignored, because Switchyard has only one process"
    )
# With the default of 700 objects, parsing a body of a million lists scans all of them repeatedly,
# so that no other thread runs for half a second.
gc.set_threshold(50_000)
if has_master() or "switchyard.server.conf" not in sys.modules:  # not `gunicorn --check-config`
    models.start()
atexit.register(models.close)
