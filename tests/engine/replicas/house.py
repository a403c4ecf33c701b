"""A ReplicaLink over links that a test plays."""

import threading
from functools import partial

from switchyard.engine.config import ModelConfig
from switchyard.engine.links.replicas import ReplicaLink
from switchyard.engine.messages import ModelInfo, ReplicaStates, Submit
from tests.scripted import NoLink, job

INFO = ModelInfo(2048, 4096, 256, 16, "scripted")


class ToldLink(NoLink):
    """To no thread: a test says what it tells, and reads what it was sent."""

    def __init__(self, deliver, at=""):
        super().__init__()
        self.at = at
        self.tell = lambda *events: deliver(events)
        self.pid = None

    @property
    def jobs(self):
        """Identifiers of what was submitted to it."""
        return [command.job.identifier for command in self.sent if isinstance(command, Submit)]


class House:
    """A link over that many replicas, and what it has delivered. `is_shared`: they are engines that
    other servers use, too.
    """

    def __init__(self, number, is_shared=False, **config):
        self.links = []
        at = [f"unix:/{i}" if is_shared else "" for i in range(number)]
        if is_shared:
            config |= {"link": "socket", "at": tuple(at)}
        self.events = []
        self.came = threading.Condition()
        self.link = ReplicaLink(
            ModelConfig("", "model", **config),
            [((i,), partial(self._make, at[i])) for i in range(number)],
            self._take,
        )
        self.link.start()

    def _make(self, at, deliver):
        self.links.append(ToldLink(deliver, at))
        return self.links[-1]

    def _take(self, events):
        with self.came:
            self.events += events
            self.came.notify_all()

    def submit(self, *identifiers, **more):
        for identifier in identifiers:
            self.link.send(Submit(job(identifier, **more), 0.0))

    def told(self, *kinds):
        return [event for event in self.events if isinstance(event, kinds)]

    def wait_for(self, kind):
        with self.came:
            assert self.came.wait_for(lambda: self.told(kind), 20)
            return self.told(kind)[-1]

    @property
    def states(self):
        return [one.status for one in self.told(ReplicaStates)[-1].states]
