"""Chooses the replica for a job. Pure."""

from collections.abc import Sequence

from switchyard.engine.config import ModelConfig
from switchyard.engine.links.replica import Placed, Replica

BALANCE = 1.25  # times the mean load: limit of a replica that is preferred for its cache


def choose(replicas: Sequence[Replica], placed: Placed, max_jobs: int | None) -> Replica | None:
    """The replica for a job: the one with the most cached pages of the prompt's beginning, if it
    has no more jobs than `BALANCE` times the mean (bounded loads: Mirrokni, Thorup, Zadimoghaddam
    2016). Else the least busy one. None if no replica has room.
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
    """Most jobs that each replica is given. None: no limit, for a single shared engine, where the
    jobs of all servers wait in one queue.
    """
    if len(config.at) == 1:
        return None
    return config.max_batch_size * (config.replicas if config.at else 1)


def page_hashes(prompt: Sequence[int], page_size: int) -> list[int]:
    """A hash of each full page together with all pages before it."""
    hashes, last = [], 0
    for start in range(0, len(prompt) - len(prompt) % page_size, page_size):
        last = hash((last, tuple(prompt[start : start + page_size])))
        hashes.append(last)
    return hashes
