"""The queue of waiting jobs, best first. Reads no clock, because the queue measures waiting by the
work of the jobs that have started.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from switchyard.engine.job import Job

LIKELY_TIMES = 4  # an answer is probably no longer than this many usual ones
LOOK_AHEAD = 8  # jobs that may overtake the best one while it has no room


@dataclass(slots=True, eq=False)
class _Entry:
    job: Job
    serial: int
    queue: "_Queue"
    due: float  # when it becomes due, on the clock of its queue
    passed: float = 0.0  # work of jobs that overtook it for lack of room

    @property
    def work(self) -> int:
        """The probable maximum cost of the job, in tokens. Tokens count twice for a pair with
        guidance.
        """
        job = self.job
        likely = min(job.max_new_tokens, LIKELY_TIMES * job.usual_tokens)
        return job.num_prompt_tokens + likely * job.num_sequences


class _Queue:
    """A client's waiting jobs of one priority. `clock`: the total `work` of the jobs that the queue
    has started.
    """

    def __init__(self, level: "_Level", client: str, serial: int) -> None:
        self.level = level
        self.client = client
        self.serial = serial
        self.tag = max(level.time, level.finishes.pop(client, 0.0))  # start tag of the next job
        self.clock = 0.0
        self.entries: dict[str, _Entry] = {}

    def ordered(self, factor: float) -> list[_Entry]:
        """Due jobs in the order in which they became due, then the other jobs, shortest first."""

        def key(entry: _Entry) -> tuple[bool, float, int]:
            is_late = self.clock < entry.due and entry.passed < factor * entry.work
            return is_late, entry.work if is_late else entry.due, entry.serial

        return sorted(self.entries.values(), key=key)


class _Level:
    """The queues of one priority. Its virtual time advances by the work that is started, divided by
    its number of waiting clients.
    """

    def __init__(self, turn: int) -> None:
        self.turn = turn  # serial number of its last turn, or of its arrival
        self.time = 0.0
        self.finishes: dict[str, float] = {}  # tags of clients without waiting jobs, if higher
        self.queues: dict[str, _Queue] = {}


class Pending:
    """Chooses the next job to start, by three nested rules. Work is measured in tokens; a
    completion counts as at most four times its client's typical answer.

    - Priority: the highest priority goes first. Waiting lower priorities take turns of one job.
      Each turn comes after the highest priority has started `factor` times that job's work.
      Together the lower priorities get at least one part in `factor` + 1 of all work. With `n`
      lower priorities, none of them waits for longer than `n` turns until its next job starts.
    - Client: within a priority, each client gets an equal share of the work, by start-time fair
      queueing (SFQ; Goyal, Vin, Cheng 1996). A job's tag is the work of its client that was started
      before it. New clients begin at the virtual time of WF2Q+ (Bennett, Zhang 1997), because with
      the virtual time of SFQ, a stream of new clients would starve the others.
    - Size: within a client, the job with the least expected work (prompt and new tokens) goes
      first. A job's fair wait is the client's waiting work when the job arrives, including the job.
      The job is due after work of `factor` - 1 times its fair wait has started. Due jobs go first,
      in the order in which they became due. Therefore no job waits longer than `factor` times its
      fair wait plus one job, because the work of the jobs due before it is at most its fair wait.
      Other jobs may overtake a job that has no room, until they have done `factor` times its work;
      then all wait.
    """

    def __init__(self, factor: float = 4.0) -> None:
        self._factor = factor
        self._serials = count()
        self._entries: dict[str, _Entry] = {}
        self._levels: dict[int, _Level] = {}
        self._passed = 0.0  # work of the highest level since the last turn of a lower one
        self._candidates: list[Job] | None = None  # cached until the queue changes

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, job: Job, is_due: bool = False) -> None:
        """`is_due`: whether to put the job before its client's other jobs of the same priority,
        regardless of their work.
        """
        level = self._levels.get(job.priority)
        if level is None:
            level = self._levels[job.priority] = _Level(next(self._serials))
        queue = level.queues.get(job.client)
        if queue is None:
            queue = level.queues[job.client] = _Queue(level, job.client, next(self._serials))
        entry = _Entry(job, next(self._serials), queue, -math.inf)
        queue.entries[job.identifier] = self._entries[job.identifier] = entry
        if not is_due:
            fair = sum(other.work for other in queue.entries.values())
            entry.due = queue.clock + (self._factor - 1) * fair
        self._candidates = None

    def candidates(self) -> list[Job]:
        """The best jobs, in order. The first job that has room should start."""
        if self._candidates is None:
            self._candidates = []
            for entry in islice(self._ordered(), LOOK_AHEAD):
                self._candidates.append(entry.job)
                if entry.passed >= self._factor * entry.work:
                    break
        return self._candidates

    def start(self, identifier: str) -> None:
        """Remove a candidate that starts."""
        entry, queue = self._entries[identifier], self._entries[identifier].queue
        for better in self.candidates():
            if better.identifier == identifier:
                break
            self._entries[better.identifier].passed += entry.work
        level = queue.level
        if len(self._levels) > 1:
            if entry.job.priority == max(self._levels):
                self._passed += entry.work
            elif self.candidates()[0] is entry.job:  # else the better jobs had no room
                self._passed, level.turn = 0.0, next(self._serials)
        level.time = max(level.time + entry.work / len(level.queues), queue.tag)
        queue.tag += entry.work
        queue.clock += entry.work
        self.remove(identifier)

    def remove(self, identifier: str) -> Job | None:
        """Remove a job and return it. Returns None if the job was not waiting."""
        entry = self._entries.pop(identifier, None)
        if entry is None:
            return None
        self._candidates = None
        queue, level = entry.queue, entry.queue.level
        del queue.entries[identifier]
        if not queue.entries:
            del level.queues[queue.client]
            level.finishes[queue.client] = queue.tag
            level.finishes = {c: tag for c, tag in level.finishes.items() if tag > level.time}
        if not level.queues:
            del self._levels[entry.job.priority]
        return entry.job

    def identifiers(self) -> tuple[str, ...]:
        """The identifiers in the order in which the jobs would start if each job had room and no
        others arrived.
        """
        return tuple(entry.job.identifier for entry in self._ordered())

    def _ordered(self) -> Iterator[_Entry]:
        """The entries by priority and turn, as `start` would take them."""
        ordered = {p: self._of_level(level) for p, level in self._levels.items()}
        heads = {p: next(entries) for p, entries in ordered.items()}
        turns = {p: level.turn for p, level in self._levels.items()}
        passed = self._passed
        while heads:
            best = highest = max(heads)
            if len(heads) > 1:
                lower = min((p for p in heads if p != highest), key=turns.__getitem__)
                if passed >= self._factor * heads[lower].work:
                    best, passed, turns[lower] = lower, 0.0, max(turns.values()) + 1
                else:
                    passed += heads[highest].work
            yield heads[best]
            head = next(ordered[best], None)
            if head is None:
                del heads[best]
            else:
                heads[best] = head

    def _of_level(self, level: _Level) -> Iterator[_Entry]:
        heap = [
            (queue.tag, queue.serial, iter(queue.ordered(self._factor)))
            for queue in level.queues.values()
        ]
        heapq.heapify(heap)
        while heap:
            tag, serial, entries = heapq.heappop(heap)
            entry = next(entries, None)
            if entry is not None:
                yield entry
                heapq.heappush(heap, (tag + entry.work, serial, entries))
