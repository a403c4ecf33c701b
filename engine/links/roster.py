"""The replicas of a link, and the context and cache that all of them offer. Used under the link's
lock.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import Rejected
from switchyard.engine.job import Job
from switchyard.engine.links.base import Deliver, ProcessLink
from switchyard.engine.links.replica import Replica
from switchyard.engine.messages import ModelInfo, ReplicaStates, Stop
from switchyard.engine.schedule.admission import check, fits
from switchyard.engine.stats import Stats

logger = logging.getLogger(__name__)

MAX_GONE = 100  # departed engines whose counts are kept separately, since they may return

MakeLink = Callable[[Deliver], ProcessLink]


class Roster:
    """Clients are promised as much as the smallest replica can hold. Each replica gets the jobs
    that fit into its own context and cache.
    """

    def __init__(self) -> None:
        self.info: ModelInfo | None = None  # the promise; None: no replica was ever loaded
        self._replicas: list[Replica] = []
        # By address: the counts of replicas that have left, and their `Replica.before`
        self._gone: dict[str, tuple[Stats, Stats | None]] = {}
        self._past: Stats | None = None  # of those that left even earlier

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def ready(self) -> list[Replica]:
        return [one for one in self._replicas if one.status == "ready" and not one.is_leaving]

    @property
    def named(self) -> set[str]:
        """The addresses of the replicas that are not leaving."""
        return {one.link.at for one in self._replicas if not one.is_leaving}

    @property
    def are_stopped(self) -> bool:
        return all(one.status == "stopped" for one in self._replicas)

    def add(self, replica: Replica) -> None:
        self._replicas.append(replica)

    def follow(self, at: Iterable[str], make: Callable[[str], Replica]) -> list[Replica]:
        """Keep only the replicas at these addresses. Returns the new replicas, which the caller
        must start.
        """
        named = set(at)
        for one in self._replicas:
            is_leaving = one.link.at not in named or one.is_parted
            if is_leaving != one.is_leaving:
                logger.info("the engine at %s %s", one.link.at, "leaves" if is_leaving else "stays")
                one.is_leaving = is_leaving
        there = self.named
        came = [make(one) for one in at if one not in there]
        for one in came:
            logger.info("the engine at %s has joined", one.link.at)
            one.stats, one.before = self._gone.pop(one.link.at, (None, None))
        self._replicas += came
        self.part()
        return came

    def part(self) -> None:
        """End the links of leaving replicas that have no more jobs."""
        for one in [one for one in self._replicas if one.is_leaving and not one.jobs]:
            if one.status == "stopped":  # its link has ended
                self.remove(one)
            elif not one.is_parted:
                one.is_parted = True
                one.link.send(Stop())

    def remove(self, replica: Replica) -> None:
        """Remove the replica, but keep its counts, because a model's counts must never decrease."""
        if replica in self._replicas:
            self._replicas.remove(replica)
        if replica.stats is not None:
            self._gone[replica.link.at] = replica.stats.at_rest(), replica.before
        while len(self._gone) > MAX_GONE:
            stats, _ = self._gone.pop(next(iter(self._gone)))
            self._past = stats.after(self._past)

    def counts(self) -> list[Stats]:
        """The counts of all replicas, including replicas that have left."""
        gone = [stats for stats, _ in self._gone.values()]
        found = [self._past, *gone, *(one.stats for one in self._replicas)]
        return [one for one in found if one is not None]

    def states(self) -> ReplicaStates:
        return ReplicaStates(tuple(one.tell() for one in self._replicas))

    def refusal(self, replica: Replica, info: ModelInfo) -> str:
        """Returns why a replica with this `info` can't serve together with the other replicas, or
        an empty string if it can.
        """
        others = self._offers(replica)
        for name in ("vocab_size", "page_size", "loras") if others else ():
            own, other = getattr(info, name), getattr(others[0], name)
            if own != other:
                return f"it has {name} {own}, but the others have {other}"
        return ""

    def promise(self) -> ModelInfo | None:
        """Compute the promise again. Returns None if it hasn't changed."""
        before, offers = self.info, self._offers()
        if offers:
            self.info = replace(
                offers[0],
                max_seq_len=min(one.max_seq_len for one in offers),
                num_pages=min(one.num_pages for one in offers),
                num_draft_tokens=max(one.num_draft_tokens for one in offers),
            )
        return None if self.info == before else self.info

    def misfit(self, job: Job, config: ModelConfig) -> Rejected | None:
        """Returns why no replica can hold the job any more, or None if one can."""
        if self.info is None or any(fits(job, one) for one in (self.info, *self._offers())):
            return None
        try:
            check(job, self.info, config)
        except Rejected as error:
            return error
        return None

    def _offers(self, but: Replica | None = None) -> list[ModelInfo]:
        """The properties of the replicas that are serving or will serve again."""
        return [
            one.info
            for one in self._replicas
            if one.info is not None
            and one.status != "stopped"
            and not one.is_leaving
            and one is not but
        ]
