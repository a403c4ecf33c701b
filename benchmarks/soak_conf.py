"""gunicorn.conf.py for `soak.py`: over its backend; `/soak` reports memory, threads and files."""

import gc
import os
import pathlib
import threading

import switchyard.engine.models.opening
from benchmarks.soak import make_backend
from switchyard.server import conf
from switchyard.server.conf import *  # noqa: F403

switchyard.engine.models.opening.make_backend = make_backend


def post_worker_init(worker):
    conf.post_worker_init(worker)
    from switchyard.server import wsgi

    wsgi.app.add_url_rule("/soak", view_func=lambda: _state(wsgi.models.engines))


def _state(engines):
    gc.collect()  # garbage does not count
    tasks = pathlib.Path("/proc/self/task").glob("*/children")
    others = [pid for task in tasks for pid in task.read_text().split() if _is_engine(pid)]
    # gunicorn's pool has as many threads as were ever busy at once.
    own_threads = sum(not t.name.startswith("ThreadPool") for t in threading.enumerate())
    return {
        "jobs": sum(engine.num_jobs for engine in engines),
        "zombies": sum(engine.standing.num_zombies for engine in engines),
        "threads": own_threads + sum(len(os.listdir(f"/proc/{pid}/task")) for pid in others),
        "files": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in ("self", *others)),
        "rss_mb": sum(map(_rss_mb, ("self", *others))),
    }


def _is_engine(pid):
    """Not one that tries the files of a directory."""
    try:
        return b"links.pipe" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _rss_mb(pid):
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
