"""What the engine thread drives."""

from collections.abc import Sequence
from typing import Protocol

from switchyard.engine.job import Job
from switchyard.engine.messages import JobEvent, ModelInfo
from switchyard.engine.stats import Occupancy, Work


class Backend(Protocol):
    """A generator with its model. One thread makes all calls, from `open` to `close`.

    `work` is what it has done since it was made.

    A failure that concerns one job is an event of that job; what is raised concerns all of them:
    DeviceLost if only another process can go on, OutOfMemory if fewer jobs might.
    """

    work: Work

    def open(self) -> ModelInfo:
        """Load and warm up. Raises ModelError, or whatever the libraries do."""

    def has_room(self, job: Job) -> bool:
        """Whether `job` can start now. If nothing is active, that is as good as it gets."""

    def enqueue(self, job: Job) -> None:
        """Start `job` in the next iteration; only if `has_room`. Raises Rejected for its own fault,
        OutOfMemory if it may be tried again, JobFailed; DeviceLost for all jobs.
        """

    def cancel(self, identifier: str) -> list[JobEvent]:
        """Forget the job, release its pages. Its last events: what it has not told, its end. None
        of a job that it doesn't have.
        """

    def iterate(self) -> list[JobEvent]:
        """One step of all active jobs."""

    @property
    def num_jobs(self) -> int:
        """How many it works on. Cheap: asked after every iteration."""

    def occupancy(self) -> Occupancy:
        """What it holds now. Takes up to a millisecond."""

    def reconcile(self, known: Sequence[str]) -> tuple[int, list[str]]:
        """Forget all jobs but `known`, how many they were; and those of `known` that it hasn't."""

    def reset(self) -> None:
        """After a call raised: forget all jobs and all that was cached. This and the next two raise
        if the generator then doesn't generate.
        """

    def rebuild(self) -> None:
        """Where `reset` didn't help: another generator over the same model."""

    def reload(self) -> None:
        """Where `rebuild` didn't help: the model is loaded anew. Raises as `open` does."""

    def close(self) -> None:
        """Release the model. Not called if `open` failed."""
