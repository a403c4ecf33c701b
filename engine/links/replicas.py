"""One link to several replicas of a model, or to a single engine thread that may be lost.

Jobs wait here, in one fair queue, until a replica has room. Priorities and shares hold over all
replicas, and a lost replica ends only jobs whose text has begun.
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

RETRY = 5.0  # seconds until a failed load is tried again; doubled each time
MAX_RETRY = 300.0


class ReplicaLink:
    """Moves a job without text to another replica if its own is lost. It does so once: the job may
    be the cause of the loss. Any other job of a lost replica ends with an error.
    """

    def __init__(
        self,
        config: ModelConfig,
        makers: Sequence[tuple[tuple[int, ...], MakeLink]],
        deliver: Deliver,
    ) -> None:
        """`makers`: for each replica its GPUs' numbers, and a function that makes its link."""
        self._config = config
        self._outbox = Outbox(deliver)
        self._lock = threading.Lock()  # guards the attributes below; not held during a delivery
        self._pending = Pending(config.fair_wait_factor)
        self._jobs: dict[str, Placed] = {}
        self._info: ModelInfo | None = None  # of the first loaded replica; the others must equal it
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
                pass  # this link itself sends it to a hanging replica

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
        """Start the jobs for which there is room, the best first."""
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
                replica.link.send(Cancel(identifier))  # perhaps another server's job
            return
        placed.is_cancelled = True
        if placed.replica is not None:
            placed.replica.link.send(Cancel(identifier))
            return
        self._pending.remove(identifier)
        del self._jobs[identifier]
        self._outbox.put_later([placed.end_cancelled()])

    def _pass_on(self, replica: Replica, event: JobEvent, out: list[Event]) -> bool:
        """Returns whether there may be room for another job."""
        placed = self._jobs.get(event.identifier)
        if placed is None or placed.replica is not replica:
            return False  # the job has ended, or was moved
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
        """Take an event of a replica's thread. Returns whether there may be room for a job."""
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
        replica.serve(info, self._config.name)

    def _abandon(self, replica: Replica, reason: str, out: list[Event]) -> None:
        """The replica hangs. It answers the fence once it is out, after all earlier events."""
        logger.error("model %s: %s", self._config.name, reason)
        self._lose(replica, "hanging", reason, out)
        replica.abandon(next(self._fences))

    def _end(self, replica: Replica, error: EngineError | None, out: list[Event]) -> None:
        """The replica's link has ended. It is restarted while other replicas run."""
        if is_refused := replica.status == "stopped":
            error = ModelError(replica.reason)
        self._lose(replica, "stopped", str(error or ""), out)
        replica.rest()
        if all(one.status == "stopped" for one in self._replicas):
            out.append(Stopped(None if self._is_stopping else error))
            self._is_stopping = True  # no replica is restarted
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
        """End the replica's jobs with text, or moved once before; move its other jobs."""
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
