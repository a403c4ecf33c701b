"""One replica, from the point of view of its link. Used under the link's lock."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from switchyard.engine.job import Job
from switchyard.engine.links.base import ProcessLink
from switchyard.engine.messages import (
    Abandon,
    Finished,
    ListPending,
    ModelInfo,
    ReplicaState,
    ReplicaStatus,
)
from switchyard.engine.schedule.admission import fits
from switchyard.engine.stats import Stats

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Placed:
    """A job that has not ended."""

    job: Job
    submitted: float  # on the monotonic clock
    hashes: Sequence[int]  # of the prompt's full pages
    replica: "Replica | None" = None  # None: the job waits in the link
    num_pages: int = 0  # expected there
    is_started: bool = False
    has_text: bool = False  # whether the client may have seen text
    was_moved: bool = False
    is_cancelled: bool = False

    def end_cancelled(self) -> Finished:
        """Returns the end of a cancelled job without text."""
        return Finished(self.job.identifier, "cancelled", len(self.job.prompt), 0, 0)


@dataclass(slots=True, eq=False)
class Replica:
    make: Callable[[], ProcessLink]
    gpus: tuple[int, ...]
    link: ProcessLink = field(init=False)
    status: ReplicaStatus = "loading"
    reason: str = ""  # the cause if it isn't ready
    info: ModelInfo | None = None  # None: never loaded
    share: float = 0.0  # progress of the load, from 0 to 1
    jobs: dict[str, Placed] = field(default_factory=dict)  # in order of arrival
    # Hashes of the pages that it has computed, oldest first
    pages: OrderedDict[int, None] = field(default_factory=OrderedDict)
    fence: int | None = None  # serial of an answer; events before that answer are stale
    num_failures: int = 0  # failed loads in a row
    num_restarts: int = 0
    num_hangs: int = 0
    num_since: int = 0  # jobs received since its last `Stats`, minus those that ended
    is_full: bool = False  # it has refused a job since then
    is_leaving: bool = False  # it is no longer listed, and gets no more jobs
    is_parted: bool = False  # its link has been told to end
    stats: Stats | None = None  # with the counts of earlier engine threads
    before: Stats | None = None  # the counts of earlier engine threads

    def __post_init__(self) -> None:
        self.link = self.make()

    @property
    def unstarted(self) -> list[str]:
        """The identifiers of jobs that have not started, oldest first."""
        return [identifier for identifier, one in self.jobs.items() if not one.is_started]

    @property
    def load(self) -> int:
        """The number of jobs on the replica. For a shared engine, this includes the jobs of other
        servers that the engine has reported.
        """
        if not self.link.at or self.stats is None:
            return len(self.jobs)
        told = self.stats.num_active + self.stats.num_pending
        return max(len(self.jobs), told + self.num_since)

    @property
    def num_pages(self) -> int:
        """The number of pages that the replica's jobs are expected to fill."""
        return sum(placed.num_pages for placed in self.jobs.values())

    def tell(self) -> ReplicaState:
        return ReplicaState(
            status="leaving" if self.is_leaving else self.status,
            reason=self.reason,
            num_jobs=len(self.jobs),
            gpus=self.gpus,
            at=self.link.at,
            pid=self.link.pid,
            num_restarts=self.num_restarts,
            num_hangs=self.num_hangs,
        )

    def has_place(self, job: Job, max_jobs: int | None) -> bool:
        """Whether the job would start on this replica, as far as the link knows; only the replica
        knows which jobs share pages. `max_jobs`: None if jobs may wait in the replica.
        """
        assert self.info is not None
        if self.is_full or not fits(job, self.info):
            return False
        if max_jobs is None:
            return True
        if self.load >= max_jobs:
            return False
        num_pages = self._pages_of(job)
        return self.num_pages + num_pages <= self.info.num_pages or not self.unstarted

    def take(self, placed: Placed) -> None:
        assert self.info is not None
        placed.replica, placed.is_started = self, False
        placed.num_pages = self._pages_of(placed.job)
        self.num_since += 1
        self.jobs[placed.job.identifier] = placed
        for page in placed.hashes:
            self.pages[page] = None
            self.pages.move_to_end(page)
        while len(self.pages) > self.info.num_pages:
            self.pages.popitem(last=False)

    def drop(self, identifier: str) -> None:
        """Record that the job has ended on the replica."""
        del self.jobs[identifier]
        self.num_since -= 1

    def _pages_of(self, job: Job) -> int:
        assert self.info is not None
        num_new = job.expected_tokens + self.info.num_draft_tokens
        return job.num_pages(self.info.page_size, num_new)

    def serve(self, info: ModelInfo, name: str) -> None:
        if self.reason:
            logger.info(
                "model %s: process %s serves again, after: %s", name, self.link.pid, self.reason
            )
        self.info, self.status, self.reason = info, "ready", ""
        self.fence, self.num_failures = None, 0

    def forget(self) -> list[Placed]:
        """Remove all jobs, because the replica no longer works on them."""
        jobs = list(self.jobs.values())
        self.num_since, self.is_full = 0, False
        self.jobs.clear()
        self.pages.clear()
        return jobs

    def abandon(self, fence: int) -> None:
        self.num_hangs += 1
        self.fence = fence
        self.link.send(Abandon())
        self.link.send(ListPending(fence))

    def count(self, stats: Stats) -> None:
        if self.stats is not None and stats.began != self.stats.began:  # a new thread counts from 0
            self.before = self.stats
        self.stats = stats.after(self.before)
        self.num_since, self.is_full = 0, False

    def rest(self) -> None:
        """Keep the counts, but record that nothing is running on the replica."""
        if self.stats is not None:
            self.stats = self.stats.at_rest()

    def num_cached(self, hashes: Sequence[int]) -> int:
        """Returns the number of cached pages at the beginning of a prompt."""
        return next((i for i, page in enumerate(hashes) if page not in self.pages), len(hashes))
