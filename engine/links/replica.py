"""One of several engine threads that serve a model, as the front end sees it. Under its lock."""

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
from switchyard.engine.stats import Stats


@dataclass(slots=True, eq=False)
class Placed:
    """A job that has not ended."""

    job: Job
    submitted: float  # by the monotonic clock
    hashes: Sequence[int]  # of its prompt's pages
    replica: "Replica | None" = None  # None: it waits in the front end
    num_pages: int = 0  # that it takes there
    is_started: bool = False
    has_text: bool = False  # that the client may have seen
    was_moved: bool = False
    is_cancelled: bool = False

    def end_cancelled(self) -> Finished:
        """Of one that was never begun, as far as its client has seen."""
        return Finished(self.job.identifier, "cancelled", len(self.job.prompt), 0, 0)


@dataclass(slots=True, eq=False)
class Replica:
    make: Callable[[], ProcessLink]
    gpus: tuple[int, ...]
    link: ProcessLink = field(init=False)
    status: ReplicaStatus = "loading"
    reason: str = ""  # why it isn't ready
    info: ModelInfo | None = None  # None: it was never loaded
    share: float = 0.0  # of its load
    jobs: dict[str, Placed] = field(default_factory=dict)  # in the order in which they came
    pages: OrderedDict[int, None] = field(default_factory=OrderedDict)  # seen, the oldest first
    fence: int | None = None  # serial of the answer behind which no event is from before
    num_failures: int = 0  # in a row, to load
    num_restarts: int = 0
    num_hangs: int = 0
    stats: Stats | None = None  # of the engine threads so far
    before: Stats | None = None  # of those before the current one

    def __post_init__(self) -> None:
        self.link = self.make()

    @property
    def unstarted(self) -> list[str]:
        """Identifiers of jobs, the oldest first."""
        return [identifier for identifier, one in self.jobs.items() if not one.is_started]

    @property
    def num_pages(self) -> int:
        """Of its jobs."""
        return sum(placed.num_pages for placed in self.jobs.values())

    def tell(self) -> ReplicaState:
        return ReplicaState(
            status=self.status,
            reason=self.reason,
            num_jobs=len(self.jobs),
            gpus=self.gpus,
            at=self.link.at,
            pid=self.link.pid,
            num_restarts=self.num_restarts,
            num_hangs=self.num_hangs,
        )

    def has_place(self, job: Job, max_jobs: int | None) -> bool:
        """Whether the job would start there, as far as that is known here: texts that several jobs
        begin with take their pages once, which only the replica can tell. `max_jobs`: None where
        jobs wait there.
        """
        assert self.info is not None
        if max_jobs is None:
            return True
        if len(self.jobs) >= max_jobs:
            return False
        num_pages = job.num_pages(self.info.page_size, self.info.num_draft_tokens)
        return self.num_pages + num_pages <= self.info.num_pages or not self.unstarted

    def take(self, placed: Placed) -> None:
        assert self.info is not None
        placed.replica, placed.is_started = self, False
        placed.num_pages = placed.job.num_pages(self.info.page_size, self.info.num_draft_tokens)
        self.jobs[placed.job.identifier] = placed
        for page in placed.hashes:
            self.pages[page] = None
            self.pages.move_to_end(page)
        while len(self.pages) > self.info.num_pages:
            self.pages.popitem(last=False)

    def forget(self) -> list[Placed]:
        """All its jobs, which it will do nothing about any more."""
        jobs = list(self.jobs.values())
        self.jobs.clear()
        self.pages.clear()
        return jobs

    def abandon(self, fence: int) -> None:
        self.num_hangs += 1
        self.fence = fence
        self.link.send(Abandon())
        self.link.send(ListPending(fence))

    def count(self, stats: Stats) -> None:
        if self.stats is not None and stats.began != self.stats.began:  # from 0, by another
            self.before = self.stats.at_rest()
        self.stats = stats.after(self.before)

    def rest(self) -> None:
        """Nothing counts there."""
        if self.stats is not None:
            self.stats = self.stats.at_rest()

    def num_cached(self, hashes: Sequence[int]) -> int:
        """Of the pages that a prompt begins with."""
        return next((i for i, page in enumerate(hashes) if page not in self.pages), len(hashes))
