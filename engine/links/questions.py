"""Questions to replicas, which may also hold jobs of other servers. Used under the link's lock."""

from collections.abc import Sequence

from switchyard.engine.links.replica import Replica
from switchyard.engine.messages import JobList, JobState, ListJobs, ListPending, PendingList

MAX_OPEN = 64  # open questions; the next replaces the oldest, which has timed out


class Questions:
    """`ask` returns the answers that are already known. `note` returns the answers that a replica's
    reply completes. If a replica is lost, questions to it remain unanswered.
    """

    def __init__(self, is_one_queue: bool) -> None:
        """`is_one_queue`: whether jobs wait in the queue of a single shared engine."""
        self._is_one_queue = is_one_queue
        self._open: dict[int, tuple[int, list[JobState]]] = {}  # by serial: answers to come

    def ask(
        self,
        question: ListPending | ListJobs,
        replicas: Sequence[Replica],
        waiting: tuple[str, ...],
    ) -> list[PendingList | JobList]:
        """`waiting`: the identifiers of jobs without a replica, in the order of the queue."""
        ready = [one for one in replicas if one.status == "ready"]
        if isinstance(question, ListJobs):
            return self._list_jobs(question, ready)
        if self._is_one_queue and ready:
            ready[0].link.send(ListPending(-question.serial))  # negative: no fence has this serial
            return []
        taken = [identifier for replica in replicas for identifier in replica.unstarted]
        return [PendingList(question.serial, (*taken, *waiting))]

    def _list_jobs(
        self, question: ListJobs, ready: Sequence[Replica]
    ) -> list[PendingList | JobList]:
        if not ready:
            return [JobList(question.serial, ())]
        while len(self._open) >= MAX_OPEN:
            del self._open[next(iter(self._open))]
        self._open[question.serial] = len(ready), []
        for replica in ready:
            replica.link.send(question)
        return []

    def note(self, answer: PendingList | JobList) -> list[PendingList | JobList]:
        """Take a replica's reply. Returns the answers that the reply completes."""
        if isinstance(answer, PendingList):
            return [PendingList(-answer.serial, answer.identifiers)] if answer.serial < 0 else []
        if answer.serial not in self._open:
            return []
        number, jobs = self._open.pop(answer.serial)
        jobs += answer.jobs
        if number == 1:
            return [JobList(answer.serial, tuple(jobs))]
        self._open[answer.serial] = number - 1, jobs
        return []
