"""Places jobs on replicas, and moves jobs between replicas. Called under the link's lock."""

import random
from collections.abc import Sequence

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import BatchFailed, EngineError, Full
from switchyard.engine.links.outbox import Outbox
from switchyard.engine.links.replica import Placed, Replica
from switchyard.engine.links.roster import Roster
from switchyard.engine.messages import (
    Cancel,
    Event,
    Failed,
    Finished,
    JobEvent,
    PromptLogprobs,
    PutBack,
    Started,
    Submit,
)
from switchyard.engine.schedule.pending import Pending

BALANCE = 1.25  # load limit of a replica preferred for its cache, as a multiple of the mean load
MOST_ASKED = 8  # up to this number of shared engines, all are compared


def choose(replicas: Sequence[Replica], placed: Placed, max_jobs: int | None) -> Replica | None:
    """Returns the replica for a job. This is the replica that has cached the most pages of the
    prompt's beginning, if it has at most `BALANCE` times the mean number of jobs (bounded loads:
    Mirrokni, Thorup, Zadimoghaddam 2016). Otherwise it is the least busy replica. Returns None if
    no replica has room.

    Other servers choose among shared engines too. If all chose the least busy engine, they would
    send their jobs to the same one until it reports its load again. Therefore ties are broken at
    random, and if there are more than `MOST_ASKED` engines, the less busy of two random engines is
    chosen (Mitzenmacher 2001).
    """
    free = [one for one in replicas if one.has_place(placed.job, max_jobs)]
    if len(free) < 2:
        return free[0] if free else None
    best = max(free, key=lambda one: (one.num_cached(placed.hashes), -one.load))
    mean = (sum(one.load for one in replicas) + 1) / len(replicas)
    is_known = not best.link.at or best.num_cached(placed.hashes) > 0
    if is_known and best.load + 1 <= BALANCE * mean + 1:
        return best
    if best.link.at:
        free = random.sample(free, len(free) if len(free) <= MOST_ASKED else 2)
    return min(free, key=lambda one: one.load)


def max_jobs_each(config: ModelConfig) -> int | None:
    """The maximum number of jobs for each replica. None means no limit, for a single shared engine,
    where the jobs of all servers wait in one queue.
    """
    if len(config.at) == 1 and not config.has_source:
        return None
    return config.max_batch_size * (config.replicas if config.at else 1)


def page_hashes(prompt: Sequence[int], page_size: int) -> list[int]:
    """Returns a hash for each full page, together with all pages before it."""
    hashes, last = [], 0
    for start in range(0, len(prompt) - len(prompt) % page_size, page_size):
        last = hash((last, tuple(prompt[start : start + page_size])))
        hashes.append(last)
    return hashes


class PlacedJobs:
    """The jobs of a link that have not ended. They wait here, in one fair queue, until a replica
    has room.
    """

    def __init__(self, config: ModelConfig, replicas: Roster, outbox: Outbox) -> None:
        self._config = config
        self._replicas = replicas
        self._outbox = outbox
        self._pending = Pending(config.fair_wait_factor)
        self._jobs: dict[str, Placed] = {}
        self._max_jobs = max_jobs_each(config)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The identifiers of the jobs without a replica, in the order of the queue."""
        return self._pending.identifiers()

    @property
    def num_waiting(self) -> int:
        return len(self._pending)

    def add(self, placed: Placed) -> None:
        self._jobs[placed.job.identifier] = placed
        self._pending.push(placed.job)
        self.assign()

    def at(self, replica: Replica, identifier: str) -> Placed | None:
        """Returns the job, unless it has ended or moved."""
        placed = self._jobs.get(identifier)
        return placed if placed is not None and placed.replica is replica else None

    def assign(self) -> None:
        """Start the jobs for which there is room, in the order of the queue."""
        ready = self._replicas.ready
        while self._pending and ready and self._assign_one(ready):
            pass

    def cancel(self, identifier: str) -> None:
        placed = self._jobs.get(identifier)
        if placed is None:
            for replica in self._replicas.ready if self._config.at else ():
                replica.link.send(Cancel(identifier))  # perhaps another server's job
            return
        placed.is_cancelled = True
        if placed.replica is not None:
            placed.replica.link.send(Cancel(identifier))
            return
        self._pending.remove(identifier)
        self._outbox.put_later([self._end_cancelled(placed)])

    def pass_on(self, replica: Replica, event: JobEvent, out: list[Event]) -> bool:
        """Pass an event of a replica's job on to `out`, or move the job to another engine. Returns
        whether there may be room for another job.
        """
        placed = self.at(replica, event.identifier)
        if placed is None:
            return False
        if isinstance(event, Failed) and self._may_go_elsewhere(placed, event.error):
            replica.is_full = True
            replica.drop(event.identifier)
            self._wait_again(placed, out)
            return True
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
                del self._jobs[event.identifier]
                replica.drop(event.identifier)
                return True
        return False

    def lose(self, replica: Replica, is_end: bool, out: list[Event]) -> None:
        """End the replica's jobs that have text or have already moved once, and move its other
        jobs. `is_end`: whether to end those other jobs, too.
        """
        for placed in replica.forget():
            if placed.is_cancelled and not placed.has_text:
                out.append(self._end_cancelled(placed))
            elif placed.has_text or placed.was_moved or is_end:
                del self._jobs[placed.job.identifier]
                out.append(Failed(placed.job.identifier, BatchFailed(replica.reason)))
            else:
                placed.was_moved = True
                self._wait_again(placed, out)

    def _assign_one(self, ready: Sequence[Replica]) -> bool:
        """Start a job, or end a job that no replica can hold. Returns whether there was such a
        job.
        """
        for job in self._pending.candidates():
            placed = self._jobs[job.identifier]
            if (replica := choose(ready, placed, self._max_jobs)) is not None:
                self._pending.start(job.identifier)
                replica.take(placed)
                replica.link.send(Submit(job, placed.submitted))
                return True
            if (error := self._replicas.misfit(job, self._config)) is not None:
                self._pending.remove(job.identifier)
                del self._jobs[job.identifier]
                self._outbox.put_later([Failed(job.identifier, error)])
                return True
        return False

    def _may_go_elsewhere(self, placed: Placed, error: EngineError) -> bool:
        """Whether a shared engine was full of other servers' jobs, and another engine is not
        full.
        """
        others = (one for one in self._replicas.ready if one is not placed.replica)
        is_full = isinstance(error, Full) and not placed.has_text
        return is_full and any(not one.is_full for one in others)

    def _wait_again(self, placed: Placed, out: list[Event]) -> None:
        """Requeue a job that has no text and has lost its replica, so that it waits for another."""
        placed.replica = None
        if placed.is_cancelled:
            out.append(self._end_cancelled(placed))
            return
        self._pending.push(placed.job, is_due=True)
        out.append(PutBack(placed.job.identifier))

    def _end_cancelled(self, placed: Placed) -> Finished:
        del self._jobs[placed.job.identifier]
        return placed.end_cancelled()
