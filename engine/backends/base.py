"""The protocol of backends."""

from collections.abc import Callable, Sequence
from typing import Protocol

from switchyard.engine.job import Job
from switchyard.engine.messages import JobEvent, ModelInfo
from switchyard.engine.stats import Occupancy, Work


class Backend(Protocol):
    """A generator with its model. One thread makes all calls, from `open` to `close`. `work` counts
    the backend's work since its creation.

    The failure of one job is reported as an event of that job. An exception means that all jobs
    have failed. It is DeviceLost if only a new process can continue, and OutOfMemory if fewer
    concurrent jobs might fit.
    """

    work: Work

    def open(self) -> ModelInfo:
        """Load the model and warm up. Raises ModelError, or any error that a library raises."""

    def has_room(self, job: Job) -> bool:
        """Whether `job` can start now. If it can't even when no job is active, it can never
        start.
        """

    def enqueue(self, job: Job) -> None:
        """Start `job` in the next iteration; call this only after `has_room`. Raises Rejected or
        JobFailed if only this job fails, OutOfMemory if the job may be tried again, and DeviceLost
        if all jobs fail.
        """

    def cancel(self, identifier: str) -> list[JobEvent]:
        """Forget the job and release its pages. Returns the job's last events: its unsent text and
        its end. Returns no events for an unknown job.
        """

    def iterate(self) -> list[JobEvent]:
        """Run one step of all active jobs that can continue."""

    def is_waiting(self, wake: Callable[[], None]) -> bool:
        """Whether there are jobs, but none of them can continue now. Another thread then calls
        `wake` as soon as a job may be able to continue.
        """

    @property
    def num_jobs(self) -> int:
        """The number of jobs in the generator. Cheap enough to read after every iteration."""

    def occupancy(self) -> Occupancy:
        """The memory and pages in use. Reading these numbers takes up to a millisecond."""

    def reconcile(self, known: Sequence[str]) -> tuple[int, list[str]]:
        """Forget all jobs except `known`. Returns the number of forgotten jobs, and the jobs in
        `known` that the generator doesn't have.
        """

    def reset(self) -> None:
        """Recover from an exception by forgetting all jobs and all cached pages. `reset`, `rebuild`
        and `reload` raise an error if the generator still can't generate afterwards.
        """

    def rebuild(self) -> None:
        """Like `reset`, but also make a new generator for the same model."""

    def reload(self) -> None:
        """Like `rebuild`, but also load the model again. Raises the same errors as `open`."""

    def close(self) -> None:
        """Release the model. Not called if `open` failed."""
