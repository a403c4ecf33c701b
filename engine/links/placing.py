"""Which replica a job goes to. Pure."""

from collections.abc import Sequence

from switchyard.engine.config import ModelConfig
from switchyard.engine.links.replica import Placed, Replica

BALANCE = 1.25  # times the mean load, up to which a replica gets what it has cached


def choose(replicas: Sequence[Replica], placed: Placed, max_jobs: int | None) -> Replica | None:
    """Where a job goes: to the replica that has computed most of the pages which its prompt begins
    with, if that has no more jobs than `BALANCE` times the mean (bounded loads: Mirrokni, Thorup,
    Zadimoghaddam 2016), else to the least busy one. None: there is no place.
    """
    free = [one for one in replicas if one.has_place(placed.job, max_jobs)]
    if len(free) < 2:
        return free[0] if free else None
    best = max(free, key=lambda one: (one.num_cached(placed.hashes), -len(one.jobs)))
    mean = (sum(len(one.jobs) for one in replicas) + 1) / len(replicas)
    if len(best.jobs) + 1 > BALANCE * mean + 1:
        best = min(free, key=lambda one: len(one.jobs))
    return best


def max_jobs_each(config: ModelConfig) -> int | None:
    """Most jobs that each replica is given. None: as many as there are, to the one engine that
    servers share, so that they wait in one queue with those of the others.
    """
    if len(config.at) == 1:
        return None
    return config.max_batch_size * (config.replicas if config.at else 1)


def page_hashes(prompt: Sequence[int], page_size: int) -> list[int]:
    """Of each full page, with all that is before it."""
    hashes, last = [], 0
    for start in range(0, len(prompt) - len(prompt) % page_size, page_size):
        last = hash((last, tuple(prompt[start : start + page_size])))
        hashes.append(last)
    return hashes
