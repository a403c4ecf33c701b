"""A job from the point of view of a shared engine."""

from switchyard.engine.held import Tracked
from switchyard.engine.job import Job
from switchyard.engine.links.hosts.front_end import FrontEnd


class SharedJob(Tracked):
    """A job of one of the front ends."""

    __slots__ = ("front_end",)

    def __init__(self, job: Job, submitted: float, front_end: FrontEnd) -> None:
        super().__init__(job, submitted)
        self.front_end: FrontEnd | None = front_end  # None: disconnected
