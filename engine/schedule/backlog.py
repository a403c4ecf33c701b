"""The number of jobs that an engine holds. Immutable: replaced under a lock, read without it."""

from typing import NamedTuple

from switchyard.engine.job import Job
from switchyard.engine.messages import Phase


class Backlog(NamedTuple):
    """A refusal reads it without the engine's lock. Threads that waited for that lock would delay
    `deliver`, and so every stream.
    """

    num_jobs: int = 0  # that have not ended
    num_waiting: int = 0  # of these, jobs that have not started
    num_tokens: int = 0  # prompt tokens of the waiting jobs

    def moved(self, job: Job, before: Phase | None, after: Phase | None) -> "Backlog":
        """After a change of the job's phase; None: the engine does not hold it."""
        waits = (after == "pending") - (before == "pending")
        return Backlog(
            self.num_jobs + (after is not None) - (before is not None),
            self.num_waiting + waits,
            self.num_tokens + waits * job.num_prompt_tokens,
        )
