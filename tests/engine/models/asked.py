"""What tests ask of several models at once."""

import threading

from switchyard import engine
from switchyard.engine.config import ModelConfig
from switchyard.engine.links.thread import EngineThread
from switchyard.engine.messages import Stopped
from tests.conftest import wait_for
from tests.scripted import Gate, ScriptedBackend, job


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
        """A name is a model that is loaded on demand."""
        served = [self.model(one) if isinstance(one, str) else one for one in models]
        self.models = self.look.models = engine.Models(served, **self.options, **more)
        self.models.start()
        return self.models

    def ready(self, name, *others, **more):
        """Likewise, and the first, of the settings `more`, is loaded with the server."""
        models = self.start(self.model(name, load="start", **more), *others)
        assert models.wait_until_loaded(20)
        return models

    def gated(self, name):
        """The gate of the model's first backend."""
        gate = Gate()
        self.scripts[name] = [ScriptedBackend(gate=gate)]
        return gate

    def closed(self, name):
        """The model's next backend, whose load goes on until `opening` is set."""
        self.scripts[name] = [closed()]
        return self.scripts[name][0]

    def fail(self, name):
        """Its next load."""
        self.scripts[name] = [ScriptedBackend(open_error=engine.ModelError("no weights"))]

    def use(self, *names):
        for name in names:
            self.models.lease(name).release()

    def submit(self, name):
        with self.models.lease(name) as there:
            return there.submit([job("j")])

    def tick(self):
        with self.models._changed:
            self.models._life.tick()

    def settle(self):
        """The same, up to the end of what it begins."""
        self.tick()
        wait_for(lambda: all(entry.load is None for entry in self.models._entries.values()))

    def lose(self, name):
        """The model's engine."""
        lost = self.models.get(name)
        lost.deliver([Stopped(engine.DeviceLost("gone"))])
        lost.close()
        wait_for(lambda: self.models.status(name).state == "failed")

    def wait_for_looks(self, number=1):
        """Until loads have looked for room that often, from now on."""
        begin = self.look.num_looks
        wait_for(lambda: self.look.num_looks >= begin + number)

    def loaded(self):
        return [name for name in self.models.names if self.models.status(name).state == "ready"]


def end_of(stream):
    """The type of its last event, which comes before a watchdog would end it."""
    events = []
    while not stream.is_finished:
        events = stream.take(20)
        assert events
    return type(events[-1])


def no_room(reason="too little after all"):
    return ScriptedBackend(open_error=engine.NoRoom(reason))


def on_gpus(models, **gpus):
    for name, numbers in gpus.items():
        object.__setattr__(models.served(name).config, "gpus", numbers)


def closed(error=None):
    """A backend whose load goes on until `opening` is set, and ends with the error, if any."""
    backend = ScriptedBackend(open_error=error)
    backend.opening.clear()
    return backend


class Results(list):
    """What calls on threads of their own have returned or raised."""

    def join(self, timeout=20):
        for thread in self.threads:
            thread.join(timeout)
        return self


def in_threads(number, call):
    results = Results([None] * number)

    def run(i):
        try:
            results[i] = call()
        except Exception as error:
            results[i] = error

    results.threads = [threading.Thread(target=run, args=(i,)) for i in range(number)]
    for thread in results.threads:
        thread.start()
    return results
