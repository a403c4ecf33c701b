"""A single link to several replicas of a model, or to one engine thread that may be lost.

Jobs wait here, in one fair queue, until a replica has room. Priorities and shares apply across all
replicas, and a lost replica ends only jobs whose text has begun.
"""

import itertools
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial

from switchyard.engine.config import PAGE_SIZE, ModelConfig
from switchyard.engine.errors import EngineError, ModelError
from switchyard.engine.links.base import Deliver
from switchyard.engine.links.outbox import Outbox
from switchyard.engine.links.placing import PlacedJobs, max_jobs_each, page_hashes
from switchyard.engine.links.questions import Questions
from switchyard.engine.links.replica import Placed, Replica
from switchyard.engine.links.roster import MakeLink, Roster
from switchyard.engine.messages import (
    Abandon,
    Cancel,
    Chunk,
    Command,
    Demand,
    Event,
    Hanging,
    JobEvent,
    JobList,
    ListJobs,
    ListPending,
    Loaded,
    LoadProgress,
    ModelInfo,
    PendingList,
    Recovered,
    Recovering,
    ReplicaStatus,
    Restarting,
    Stop,
    Stopped,
    Submit,
    ThreadEvent,
    Zombies,
)
from switchyard.engine.schedule.alarms import ALARMS
from switchyard.engine.stats import Stats, together

logger = logging.getLogger(__name__)

RETRY = 5.0  # seconds until a failed load is tried again; doubled each time
MAX_RETRY, MAX_RETRY_SHARED = 300.0, 30.0


class ReplicaLink:
    """If a replica is lost, its jobs that have no text yet move to another replica. A job moves
    only once, because it may have caused the loss. All other jobs of a lost replica end with an
    error.
    """

    def __init__(
        self,
        config: ModelConfig,
        makers: Sequence[tuple[tuple[int, ...], MakeLink]],
        deliver: Deliver,
    ) -> None:
        """`makers`: for each replica, the numbers of its GPUs and a function that creates its
        link.
        """
        self._config = config
        self._outbox = Outbox(deliver)
        self._lock = threading.Lock()  # guards the attributes below; not held during a delivery
        self._replicas = Roster()
        self._jobs = PlacedJobs(config, self._replicas, self._outbox)
        self._fences = itertools.count(1)
        self._questions = Questions(is_one_queue=max_jobs_each(config) is None)
        self._began = time.time()
        self._demand = 0  # as reported
        self._is_stopping = False
        self._is_followed = config.has_source  # whether a source lists the replicas
        for gpus, make in makers:
            self._replicas.add(self._replica(gpus, make))

    # Any thread

    def start(self) -> None:
        for replica in self._replicas:
            replica.link.start()

    def follow(self, makers: Mapping[str, MakeLink]) -> None:
        """Use only the replicas at these addresses from now on. A replica that is no longer listed
        gets no more jobs, and its link ends after its last job. If there is no replica at all, jobs
        wait.
        """
        with self._lock:
            if self._is_stopping or self._replicas.named == makers.keys():
                return
            came = self._replicas.follow(makers, lambda at: self._replica((), makers[at]))
            promise = self._replicas.promise()
            self._jobs.assign()
            told = [] if promise is None else [Loaded(promise)]
            self._outbox.put_later([*told, self._replicas.states()])
        for one in came:  # without the lock: a link may deliver while it starts
            one.link.start()

    def tell_demand(self) -> None:
        """Report to shared engines how many jobs wait here, and once more when no job waits any
        longer.
        """
        with self._lock:
            before, self._demand = self._demand, self._jobs.num_waiting
            for one in self._replicas.ready if before or self._demand else ():
                one.link.send(Demand(self._demand))

    def send(self, command: Command) -> None:
        match command:
            case Submit(job, submitted):
                is_choice = self._is_followed or len(self._replicas) > 1
                hashes = page_hashes(job.prompt, PAGE_SIZE) if is_choice else ()
                with self._lock:
                    self._jobs.add(Placed(job, submitted, hashes))
            case Cancel(identifier):
                with self._lock:
                    self._jobs.cancel(identifier)
            case ListPending() | ListJobs():
                with self._lock:
                    replicas, waiting = [*self._replicas], self._jobs.waiting
                    self._outbox.put_later(self._questions.ask(command, replicas, waiting))
            case Stop():
                with self._lock:
                    if self._is_followed and self._replicas.are_stopped:
                        self._outbox.put_later(
                            [Stopped(None)]
                        )  # no link is left that would report it
                    self._is_stopping = True
                    for replica in self._replicas:
                        replica.link.send(command)
            case Abandon() | Demand():
                pass  # this link itself sends them

    def join(self, timeout: float | None = None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            links = [one.link for one in self._replicas]
        for link in links:
            link.join(None if end is None else max(end - time.monotonic(), 0))
        return all(link.join(0) for link in links)

    # Threads of the links

    def _take(self, replica: Replica, events: Sequence[Event]) -> None:
        out: list[Event] = []
        with self._lock:
            is_change = False
            for event in events:
                if type(event) is Chunk:  # nearly always
                    if (placed := self._jobs.at(replica, event.identifier)) is not None:
                        placed.has_text = True
                        out.append(event)
                elif isinstance(event, JobEvent):
                    is_change |= self._jobs.pass_on(replica, event, out)
                else:
                    is_change |= self._note(replica, event, out)
            if is_change:
                self._replicas.part()
                self._jobs.assign()
            self._outbox.put(out)
        self._outbox.deliver()

    # Inside, under the lock

    def _replica(self, gpus: tuple[int, ...], make: MakeLink) -> Replica:
        one = Replica(lambda: make(lambda events: self._take(one, events)), gpus)
        return one

    def _note(self, replica: Replica, event: ThreadEvent, out: list[Event]) -> bool:
        """Take an event of a replica's thread. Returns whether there may be room for a job."""
        match event:
            case LoadProgress(share):
                replica.share = share
                if self._replicas.info is None:
                    out.append(LoadProgress(max(one.share for one in self._replicas)))
                return False
            case Stats():
                replica.count(event)
                out.append(self._sum())
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
                then = "waiting for" if replica.link.at else "reloading"
                logger.error("model %s: %s; %s it", self._config.name, reason, then)
                self._lose(replica, "loading", reason, out)
                replica.num_restarts += 1
                replica.rest()
                out.append(self._sum())
            case Stopped(error):
                self._end(replica, error, out)
        is_told = self._is_followed or self._replicas.info is not None
        if is_told and not self._is_stopping:
            out.append(self._replicas.states())
        return True

    def _sum(self) -> Stats:
        """Returns the sums over all replicas. The time is this server's, because machines' clocks
        differ.
        """
        counts, waiting = self._replicas.counts(), self._jobs.num_waiting
        return together(time.monotonic(), counts, waiting, self._began)

    def _load(self, replica: Replica, info: ModelInfo, out: list[Event]) -> None:
        if reason := self._replicas.refusal(replica, info):
            logger.error(
                "model %s: a replica differs from the others: %s", self._config.name, reason
            )
            replica.status, replica.reason = "stopped", reason
            replica.link.send(Stop())
            return
        replica.serve(info, self._config.name)
        if (promise := self._replicas.promise()) is not None:
            out.append(Loaded(promise))

    def _abandon(self, replica: Replica, reason: str, out: list[Event]) -> None:
        """Called when the replica hangs. When the replica continues, it sends all earlier events
        before it replies to the fence.
        """
        logger.error("model %s: %s", self._config.name, reason)
        self._lose(replica, "hanging", reason, out)
        replica.abandon(next(self._fences))

    def _end(self, replica: Replica, error: EngineError | None, out: list[Event]) -> None:
        """Called when the replica's link has ended. The link is restarted if other replicas run,
        and in any case if a source lists the replicas.
        """
        if is_refused := replica.status == "stopped":
            error = ModelError(replica.reason)
        self._lose(replica, "stopped", str(error or ""), out)
        replica.rest()
        if replica.is_leaving:
            self._replicas.remove(replica)
        out.append(self._sum())
        if self._replicas.are_stopped and (self._is_stopping or not self._is_followed):
            out.append(Stopped(None if self._is_stopping else error))
            self._is_stopping = True  # no replica is restarted
        elif not (self._is_stopping or replica.is_leaving or (is_refused and not replica.link.at)):
            most = MAX_RETRY_SHARED if replica.link.at else MAX_RETRY
            seconds = min(RETRY * 2**replica.num_failures, most)
            replica.num_failures += 1
            logger.error("model %s: %s; retrying in %.0f s", self._config.name, error, seconds)
            ALARMS.set(seconds, partial(self._revive, replica))

    def _revive(self, replica: Replica) -> None:
        with self._lock:
            if self._is_stopping or replica.is_leaving:
                return
            replica.link, replica.status = replica.make(), "loading"
        replica.link.start()

    def _lose(self, replica: Replica, status: ReplicaStatus, reason: str, out: list[Event]) -> None:
        replica.status, replica.reason = status, reason
        self._jobs.lose(replica, self._is_stopping, out)
