"""The protocol of backends."""

from collections.abc import Callable, Sequence
from typing import Protocol

from switchyard.engine.job import Job
from switchyard.engine.messages import JobEvent, ModelInfo
from switchyard.engine.stats import Occupancy, Work


class Backend(Protocol):
    """A generator with its model. One thread makes all calls, from `open` to `close`. `work` counts
    the backend's work since it was made.

    A failure of one job is an event of that job. An exception concerns all jobs: DeviceLost if only
    another process can continue, OutOfMemory if fewer jobs might.
    """

    work: Work

    def open(self) -> ModelInfo:
        """Load the model and warm up. Raises ModelError, or any error that a library raises."""

    def has_room(self, job: Job) -> bool:
        """Whether `job` can start now. False with no active job means that it never can."""

    def enqueue(self, job: Job) -> None:
        """Start `job` in the next iteration; call it only after `has_room`. Raises Rejected or
        JobFailed if only this job fails, OutOfMemory if the job may be tried again, DeviceLost for
        all jobs.
        """

    def cancel(self, identifier: str) -> list[JobEvent]:
        """Forget the job and release its pages. Returns its last events: the text that was not sent
        yet, and the job's end. Returns no events for an unknown job.
        """

    def iterate(self) -> list[JobEvent]:
        """One step of all active jobs that can continue."""

    def is_waiting(self, wake: Callable[[], None]) -> bool:
        """Whether there are jobs but none of them can continue now. If so, another thread calls
        `wake` when a job may be able to continue.
        """

    @property
    def num_jobs(self) -> int:
        """Number of jobs in the generator. Cheap enough to be read after every iteration."""

    def occupancy(self) -> Occupancy:
        """Memory and pages in use. Reading them takes up to a millisecond."""

    def reconcile(self, known: Sequence[str]) -> tuple[int, list[str]]:
        """Forget all jobs except `known`. Returns the number of forgotten jobs, and which of
        `known` the generator does not have.
        """

    def reset(self) -> None:
        """Recover from an exception: forget all jobs and all cached pages. `reset`, `rebuild` and
        `reload` all raise an error if the generator then can't generate.
        """

    def rebuild(self) -> None:
        """Stronger than `reset`: make a new generator for the same model."""

    def reload(self) -> None:
        """Stronger than `rebuild`: load the model again. Raises what `open` raises."""

    def close(self) -> None:
        """Release the model. Not called if `open` failed."""
