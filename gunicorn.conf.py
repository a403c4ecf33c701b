"""gunicorn for Switchyard: one threaded worker, which holds the model. Settings: app/config.py."""

import math
import os
import signal
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import app
import engine

ONE_WORKER = (
    "switchyard: one worker only: each would load a model of its own, and threads and CUDA do not"
    " survive a fork. More requests at once: SWITCHYARD_MAX_BATCH_SIZE."
)
BOOT_ERROR = 3  # the exit status of a worker after which gunicorn doesn't start another


def _stop(message):
    print(message, file=sys.stderr, flush=True)
    sys.exit(1)


try:
    settings = app.read_settings()
    engine.ModelDir.read(settings.engine_config().path)
except (app.SettingsError, engine.ModelError) as error:
    _stop(f"switchyard: {error}")

wsgi_app = "wsgi:app"
bind = settings.bind
workers = 1
worker_class = "gthread"
# Surplus connections wait in a queue without bound, health checks among them, so there are more
# threads than jobs that the engine takes.
threads = settings.num_threads
worker_connections = 10 * threads
preload_app = False  # the model is loaded in the worker, on its engine thread
graceful_timeout = math.ceil(settings.grace) + 10  # the drain ends before gunicorn kills
keepalive = 5
control_socket_disable = True  # one path for all servers of a user, and a way to add workers
loglevel = settings.log_level.lower()


def on_starting(server):
    if server.cfg.workers != 1 or int(os.environ.get("WEB_CONCURRENCY") or 1) != 1:
        _stop(ONE_WORKER)
    if server.cfg.worker_class_str != "gthread":
        _stop(f"switchyard: worker class gthread only, not {server.cfg.worker_class_str}")
    if server.cfg.preload_app:
        _stop("switchyard: no preload: threads and CUDA do not survive a fork")


def nworkers_changed(server, new_value, old_value):
    if old_value is not None and new_value > 1:  # SIGTTIN
        server.log.error(ONE_WORKER)
        server.num_workers = 1


def post_worker_init(worker):
    import wsgi

    args = (wsgi.models, str(worker.sockets[0]))
    threading.Thread(target=_announce, args=args, name="announce", daemon=True).start()

    def drain(signum, frame):
        args = (settings.grace,)
        threading.Thread(target=wsgi.models.close, args=args, name="drain", daemon=True).start()
        worker.handle_exit(signum, frame)

    signal.signal(signal.SIGTERM, drain)  # gunicorn has no hook for it


def worker_int(worker):
    _close_models()


def worker_exit(server, worker):
    _close_models()


def _close_models():
    wsgi = sys.modules.get("wsgi")  # not there in the master, nor if the import failed
    if wsgi is not None:
        wsgi.models.close(timeout=10)  # not for as long as a model that is loading may take


def _announce(models, url):
    """Say where once the model is warm; end the server if it can't be loaded."""
    if models.wait_until_loaded():
        print(
            f"Switchyard serves {', '.join(models.names)} at {url}\n"
            f"Try: curl -N {url}/v1/completions -H 'Content-Type: application/json'"
            ' -d \'{"prompt": "Once upon a time", "max_tokens": 32, "stream": true}\'',
            flush=True,
        )
        return
    errors = [error for name in models.names if (error := models.get(name).error)]
    if errors:  # else it was told to stop while loading
        for error in errors:
            print(f"switchyard: {error}", file=sys.stderr, flush=True)
        os._exit(BOOT_ERROR)
