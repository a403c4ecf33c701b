"""Several engine threads that serve one model, or a single one that may be lost, as one link.

Jobs wait here, in one fair queue, until a replica has a place: so priorities and shares hold over
all of them, and a replica that is lost takes along only what it has begun to tell.
"""

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

from switchyard.engine.config import PAGE_SIZE, ModelConfig
from switchyard.engine.errors import BatchFailed, EngineError, ModelError
from switchyard.engine.links.base import Deliver, ProcessLink
from switchyard.engine.links.outbox import Outbox
from switchyard.engine.links.placing import choose, max_jobs_each, page_hashes
from switchyard.engine.links.questions import Questions
from switchyard.engine.links.replica import Placed, Replica
from switchyard.engine.messages import (
    Abandon,
    Cancel,
    Chunk,
    Command,
    Event,
    Failed,
    Finished,
    Hanging,
    JobEvent,
    JobList,
    ListJobs,
    ListPending,
    Loaded,
    LoadProgress,
    ModelInfo,
    PendingList,
    PromptLogprobs,
    PutBack,
    Recovered,
    Recovering,
    ReplicaStates,
    ReplicaStatus,
    Restarting,
    Started,
    Stop,
    Stopped,
    Submit,
    ThreadEvent,
    Zombies,
)
from switchyard.engine.schedule.alarms import ALARMS
from switchyard.engine.schedule.pending import Pending
from switchyard.engine.stats import Stats, together

logger = logging.getLogger(__name__)

MakeLink = Callable[[Deliver], ProcessLink]

RETRY = 5.0  # seconds until a replica that can't load is tried anew; then twice as long each time
MAX_RETRY = 300.0


class ReplicaLink:
    """A job of which its client has seen nothing goes on elsewhere if its replica is lost: once,
    in case that it is the one that ends replicas. Any other ends with an error.
    """

    def __init__(
        self,
        config: ModelConfig,
        makers: Sequence[tuple[tuple[int, ...], MakeLink]],
        deliver: Deliver,
    ) -> None:
        """`makers`: of each replica the numbers of its GPUs, and what makes its link."""
        self._config = config
        self._outbox = Outbox(deliver)
        self._lock = threading.Lock()  # guards what follows; not held while delivering
        self._pending = Pending(config.fair_wait_factor)
        self._jobs: dict[str, Placed] = {}
        self._info: ModelInfo | None = None  # of the first that was loaded: all are alike
        self._fences = itertools.count(1)
        self._max_jobs = max_jobs_each(config)
        self._questions = Questions(is_one_queue=self._max_jobs is None)
        self._began = time.time()
        self._is_stopping = False
        self._replicas = [self._replica(gpus, make) for gpus, make in makers]

    # Any thread

    def start(self) -> None:
        for replica in self._replicas:
            replica.link.start()

    def send(self, command: Command) -> None:
        match command:
            case Submit(job, submitted):
                hashes = page_hashes(job.prompt, PAGE_SIZE) if len(self._replicas) > 1 else ()
                with self._lock:
                    self._jobs[job.identifier] = Placed(job, submitted, hashes)
                    self._pending.push(job)
                    self._assign()
            case Cancel(identifier):
                with self._lock:
                    self._cancel(identifier)
            case ListPending() | ListJobs():
                with self._lock:
                    waiting = self._pending.identifiers()
                    self._outbox.put_later(self._questions.ask(command, self._replicas, waiting))
            case Stop():
                with self._lock:
                    self._is_stopping = True
                    for replica in self._replicas:
                        replica.link.send(command)
            case Abandon():
                pass  # the replica that hangs is told so here

    def join(self, timeout: float | None = None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        for one in self._replicas:
            one.link.join(None if end is None else max(end - time.monotonic(), 0))
        return all(one.link.join(0) for one in self._replicas)

    # Threads of the links

    def _take(self, replica: Replica, events: Sequence[Event]) -> None:
        out: list[Event] = []
        with self._lock:
            is_change = False
            for event in events:
                if type(event) is Chunk:  # nearly always
                    placed = self._jobs.get(event.identifier)
                    if placed is not None and placed.replica is replica:
                        placed.has_text = True
                        out.append(event)
                elif isinstance(event, JobEvent):
                    is_change |= self._pass_on(replica, event, out)
                else:
                    is_change |= self._note(replica, event, out)
            if is_change:
                self._assign()
            self._outbox.put(out)
        self._outbox.deliver()

    # Inside, under the lock

    def _replica(self, gpus: tuple[int, ...], make: MakeLink) -> Replica:
        one = Replica(lambda: make(lambda events: self._take(one, events)), gpus)
        return one

    def _assign(self) -> None:
        """Begin what there is a place for, the best first."""
        ready = self._ready()
        while self._pending and ready:
            for job in self._pending.candidates():
                placed = self._jobs[job.identifier]
                replica = choose(ready, placed, self._max_jobs)
                if replica is not None:
                    break
            else:
                return
            self._pending.start(job.identifier)
            replica.take(placed)
            replica.link.send(Submit(job, placed.submitted))

    def _ready(self) -> list[Replica]:
        return [one for one in self._replicas if one.status == "ready"]

    def _cancel(self, identifier: str) -> None:
        placed = self._jobs.get(identifier)
        if placed is None:
            for replica in self._ready() if self._config.at else ():
                replica.link.send(Cancel(identifier))  # of another server, perhaps
            return
        placed.is_cancelled = True
        if placed.replica is not None:
            placed.replica.link.send(Cancel(identifier))
            return
        self._pending.remove(identifier)
        del self._jobs[identifier]
        self._outbox.put_later([placed.end_cancelled()])

    def _pass_on(self, replica: Replica, event: JobEvent, out: list[Event]) -> bool:
        """Whether there may be a place for another job."""
        placed = self._jobs.get(event.identifier)
        if placed is None or placed.replica is not replica:
            return False  # of a job that has ended, or was moved
        out.append(event)
        match event:
            case Started():
                placed.is_started = True
                return True
            case PutBack():
                placed.is_started = False
            case PromptLogprobs():
                placed.has_text = True
            case Finished() | Failed():
                del self._jobs[event.identifier], replica.jobs[event.identifier]
                return True
        return False

    def _note(self, replica: Replica, event: ThreadEvent, out: list[Event]) -> bool:
        """What a replica tells of itself. Whether there may be a place for a job."""
        match event:
            case LoadProgress(share):
                replica.share = share
                if self._info is None:
                    out.append(LoadProgress(max(one.share for one in self._replicas)))
                return False
            case Stats():
                replica.count(event)
                counted = [one.stats for one in self._replicas if one.stats is not None]
                out.append(together(event.time, counted, len(self._pending), self._began))
            case Zombies():
                out.append(event)
            case PendingList(serial):
                if serial == replica.fence:
                    replica.fence, replica.status, replica.reason = None, "ready", ""
                else:
                    out += self._questions.note(event)
            case JobList():
                out += self._questions.note(event)
                return False
            case Loaded(info):
                self._load(replica, info, out)
            case Recovering(reason):
                if replica.status == "ready":
                    replica.status, replica.reason = "recovering", reason
            case Recovered():
                if replica.status == "recovering":
                    replica.status, replica.reason = "ready", ""
            case Hanging(reason):
                self._abandon(replica, reason, out)
            case Restarting(reason):
                then = "waited for" if replica.link.at else "loaded anew"
                logger.error("model %s: %s; it is %s", self._config.name, reason, then)
                self._lose(replica, "loading", reason, out)
                replica.num_restarts += 1
                replica.rest()
            case Stopped(error):
                self._end(replica, error, out)
        if self._info is not None and not self._is_stopping:
            out.append(ReplicaStates(tuple(one.tell() for one in self._replicas)))
        return True

    def _load(self, replica: Replica, info: ModelInfo, out: list[Event]) -> None:
        if self._info is None:
            self._info = info
            out.append(Loaded(info))
        elif info != self._info:
            reason = f"it offers {info}, and the first replica {self._info}"
            logger.error("model %s: one is not like the others: %s", self._config.name, reason)
            replica.status, replica.reason = "stopped", reason
            replica.link.send(Stop())
            return
        replica.info, replica.status, replica.reason = info, "ready", ""
        replica.fence, replica.num_failures = None, 0

    def _abandon(self, replica: Replica, reason: str, out: list[Event]) -> None:
        """It is stuck. If it comes out, it answers behind all that is from before."""
        logger.error("model %s: %s", self._config.name, reason)
        self._lose(replica, "hanging", reason, out)
        replica.abandon(next(self._fences))

    def _end(self, replica: Replica, error: EngineError | None, out: list[Event]) -> None:
        """Its link has ended. It is tried anew while there are others."""
        if is_refused := replica.status == "stopped":
            error = ModelError(replica.reason)
        self._lose(replica, "stopped", str(error or ""), out)
        replica.rest()
        if all(one.status == "stopped" for one in self._replicas):
            out.append(Stopped(None if self._is_stopping else error))
            self._is_stopping = True  # none is tried anew
        elif not (self._is_stopping or is_refused):
            seconds = min(RETRY * 2**replica.num_failures, MAX_RETRY)
            replica.num_failures += 1
            logger.error("model %s: %s; anew in %.0f s", self._config.name, error, seconds)
            ALARMS.set(seconds, partial(self._revive, replica))

    def _revive(self, replica: Replica) -> None:
        with self._lock:
            if not self._is_stopping:
                replica.link, replica.status = replica.make(), "loading"
                replica.link.start()

    def _lose(self, replica: Replica, status: ReplicaStatus, reason: str, out: list[Event]) -> None:
        """What it had begun to tell ends, and what has been lost before."""
        replica.status, replica.reason = status, reason
        for placed in replica.forget():
            identifier = placed.job.identifier
            if placed.is_cancelled and not placed.has_text:
                del self._jobs[identifier]
                out.append(placed.end_cancelled())
            elif placed.has_text or placed.was_moved or self._is_stopping:
                del self._jobs[identifier]
                out.append(Failed(identifier, BatchFailed(reason)))
            else:
                placed.replica, placed.was_moved = None, True
                self._pending.push(placed.job, is_due=True)
                out.append(PutBack(identifier))
