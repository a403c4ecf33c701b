"""What tests ask of several models at once."""

import threading
import time

from switchyard import engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.links.thread import EngineThread
from tests.scripted import ScriptedBackend


class Look:
    """Looks at a host with this many bytes; a model takes what its `max_batch_size` says."""

    def __init__(self, size):
        self.size = size
        self.models = None
        self.num_looks = 0

    def needed(self, config):
        return {"host": config.max_batch_size}

    def free(self, places):
        self.num_looks += 1
        loaded = [one for one in self.models.engines if one.standing.is_ready]
        return {"host": self.size - sum(one.config.max_batch_size for one in loaded)}


class Served:
    """A table of scripted models, and what becomes of them."""

    def __init__(self, model_path, size=100, **options):
        self.model_path = model_path
        self.backends = []  # (name, max_batch_size, backend), as they were opened
        self.scripts = {}  # by name: keyword arguments of the next backend
        self.look = Look(size)
        self.now = 1000.0
        self.options = {"look": self.look, "open": self.open, "load_wait": 20.0, **options}
        self.models = None

    def open(self, config):
        script = self.scripts.get(config.name, [])
        made = script.pop(0) if script else ScriptedBackend()
        if isinstance(made, Exception):
            raise made
        self.backends.append((config.name, config.max_batch_size, made))
        return engine.Engine(config, lambda d: EngineThread(config, lambda: made, d))

    def model(self, name, size=10, **more):
        load = more.pop("load", "demand")
        options = {k: more.pop(k) for k in ("idle_timeout", "drain") if k in more}
        config = ModelConfig(self.model_path, name, max_batch_size=size, link="thread", **more)
        return engine.Served(config, load, **options)

    def start(self, *models, **more):
        self.models = self.look.models = engine.Models(models, **self.options, **more)
        self.models.start()
        return self.models

    def loaded(self):
        return [name for name in self.models.names if self.models.status(name).state == "ready"]


def ends(events):
    return [type(event) for event in events][-1]


def closed():
    """A backend whose load goes on until `opening` is set."""
    backend = ScriptedBackend()
    backend.opening.clear()
    return backend


def wait_for(condition):
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def in_threads(number, call):
    results = [None] * number

    def run(i):
        try:
            results[i] = call()
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    return threads, results
