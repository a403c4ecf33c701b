"""Jobs that wait for a place in the batch. Engine thread only."""

from engine.messages import Job


class Pending:
    """First in, first out."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}  # a dict keeps the order and removes by identifier

    def __len__(self) -> int:
        return len(self._jobs)

    def push(self, job: Job) -> None:
        self._jobs[job.identifier] = job

    def best(self) -> Job:
        """The job to start next; it stays. IndexError-free: ask only when there is one."""
        return next(iter(self._jobs.values()))

    def identifiers(self) -> tuple[str, ...]:
        """The next first."""
        return tuple(self._jobs)

    def remove(self, identifier: str) -> Job | None:
        """It, if it was there."""
        return self._jobs.pop(identifier, None)
