"""The replicas of a link: which there are, and what they offer together. Under the link's lock."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import Rejected
from switchyard.engine.job import Job
from switchyard.engine.links.base import Deliver, ProcessLink
from switchyard.engine.links.replica import Replica
from switchyard.engine.messages import ModelInfo, ReplicaStates
from switchyard.engine.schedule.admission import check, fits

MakeLink = Callable[[Deliver], ProcessLink]


class Roster:
    """What is promised to clients is what the smallest replica can hold. A replica gets the jobs
    that fit into its own context and cache.
    """

    def __init__(self) -> None:
        self.info: ModelInfo | None = None  # the promise; None: no replica was ever loaded
        self._replicas: list[Replica] = []

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)

    @property
    def ready(self) -> list[Replica]:
        return [one for one in self._replicas if one.status == "ready"]

    @property
    def are_stopped(self) -> bool:
        return all(one.status == "stopped" for one in self._replicas)

    def add(self, replica: Replica) -> None:
        self._replicas.append(replica)

    def states(self) -> ReplicaStates:
        return ReplicaStates(tuple(one.tell() for one in self._replicas))

    def refusal(self, replica: Replica, info: ModelInfo) -> str:
        """Why a replica that offers this can't serve beside the others; empty if it can."""
        others = self._offers(replica)
        for name in ("vocab_size", "page_size", "loras") if others else ():
            own, other = getattr(info, name), getattr(others[0], name)
            if own != other:
                return f"it has {name} {own}, and the others have {other}"
        return ""

    def promise(self) -> ModelInfo | None:
        """Compute the promise anew. None if it stays."""
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
        """Why no replica can ever hold the job: those that could have gone."""
        if self.info is None or any(fits(job, one) for one in (self.info, *self._offers())):
            return None
        try:
            check(job, self.info, config)
        except Rejected as error:
            return error
        return None

    def _offers(self, but: Replica | None = None) -> list[ModelInfo]:
        """Of the replicas that serve, or will again."""
        return [
            one.info
            for one in self._replicas
            if one.info is not None and one.status != "stopped" and one is not but
        ]
