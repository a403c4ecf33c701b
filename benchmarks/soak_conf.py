"""gunicorn.conf.py for `soak.py`: forward passes fail now and then, and `/soak` tells what is held.

SOAK_FAULTS is the share of them that fail; every fifth failure goes on for two or
three passes, so that now and then a retry doesn't help, and the batch fails.
"""

import gc
import os
import pathlib
import random
import threading

_CONF = pathlib.Path(__file__).parent.parent / "gunicorn.conf.py"
exec(compile(_CONF.read_text(), _CONF, "exec"))

_backends = []
_serve = globals()["post_worker_init"]


def post_fork(server, worker):
    import engine.models

    make_backend = engine.models.make_backend

    def make_faulty_backend(*args):
        backend = make_backend(*args)
        backend._load = _faulty(backend._load)
        _backends.append(backend)
        return backend

    engine.models.make_backend = make_faulty_backend


def post_worker_init(worker):
    _serve(worker)
    import wsgi

    wsgi.app.add_url_rule("/soak", view_func=lambda: _state(wsgi.models))


def _faulty(load):
    share = float(os.environ.get("SOAK_FAULTS", "0"))
    rng = random.Random(0)
    left = 0

    def load_faulty(*args):
        loaded = load(*args)
        forward = loaded.model.forward_chunk

        def forward_chunk(*args, **kwargs):
            nonlocal left
            if left == 0 and rng.random() < share:
                left = rng.randint(2, 3) if rng.random() < 0.2 else 1
            if left:
                left -= 1
                raise RuntimeError("a fault that the soak test asked for")
            return forward(*args, **kwargs)

        loaded.model.forward_chunk = forward_chunk
        return loaded

    return load_faulty


def _state(models):
    gc.collect()  # what is garbage already is not held
    generator, jobs = _backends[-1]._generator, _backends[-1]._jobs
    with open("/proc/self/statm") as statm:
        pages = int(statm.read().split()[1])
    return {
        "jobs": models.get().num_jobs,
        "zombies": len(generator.active_jobs) - len(jobs),
        "pages": generator.max_pages - len(generator.unreferenced_pages),
        # Of gunicorn's pool there are as many as were ever busy at once.
        "threads": sum(not t.name.startswith("ThreadPool") for t in threading.enumerate()),
        "files": len(os.listdir("/proc/self/fd")),
        "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6,
    }
