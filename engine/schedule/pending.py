"""Jobs that wait, the best first. Pure: the work that has started is the clock."""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

from switchyard.engine.job import Job

LOOK_AHEAD = 8  # jobs that may be tried in place of the best, while that one has no room


@dataclass(slots=True, eq=False)
class _Entry:
    job: Job
    serial: int
    queue: "_Queue"
    due: float  # when it goes before shorter ones, by the clock of its queue
    passed: float = 0.0  # work that has started while it was better but had no room

    @property
    def work(self) -> int:
        """What the job may cost, in tokens; a pair for guidance computes each of them twice."""
        job = self.job
        prompts = len(job.prompt) + len(job.negative_prompt)
        return prompts + job.max_new_tokens * job.num_sequences


class _Queue:
    """What waits of one client with one priority. `clock` is the work that has started of it."""

    def __init__(self, level: "_Level", client: str, serial: int) -> None:
        self.level = level
        self.client = client
        self.serial = serial
        self.tag = max(level.time, level.finishes.pop(client, 0.0))  # start tag of its next job
        self.clock = 0.0
        self.entries: dict[str, _Entry] = {}

    def ordered(self, factor: float) -> list[_Entry]:
        """Due ones as they became due, then the shortest first."""

        def key(entry: _Entry) -> tuple[bool, float, int]:
            is_late = self.clock < entry.due and entry.passed < factor * entry.work
            return is_late, entry.work if is_late else entry.due, entry.serial

        return sorted(self.entries.values(), key=key)


class _Level:
    """One priority. Its virtual time goes on by each waiting client's share of what starts."""

    def __init__(self, turn: int) -> None:
        self.turn = turn  # the last that it had before its time, or when it came; a serial number
        self.time = 0.0
        self.finishes: dict[str, float] = {}  # tags of clients with nothing waiting, if above it
        self.queues: dict[str, _Queue] = {}


class Pending:
    """Which job starts next, of those that wait. Three rules, one inside the other:

    - the highest priority. While lower ones wait, they get one job's turn, each after the other,
      for `factor` times its work that has started of the highest: together at least one part in
      `factor` + 1 of all work. So with `n` lower ones, none waits for its next job longer than `n`
      jobs, one of each, take with `factor` + 1 times their work, and one job of the highest a turn;
    - of that, clients get equal shares of the work: start-time fair queueing (Goyal, Vin, Cheng
      1996), a client's jobs tagged with the work of it that was started before. The virtual time,
      where newcomers begin, is that of WF2Q+ (Bennett, Zhang 1997): SFQ's own stands still while
      ever new clients come, and they would starve the others;
    - of the client, the shortest expected work, prompt and new tokens. As much work as waited of
      the client when a job came, itself included, is its fair wait; after `factor` - 1 times that
      it is due and goes first, the longest due before others. So none waits more than `factor`
      times its fair wait, and one job longer: those due before it are no more than its fair wait.

    A job without room lets others pass until they were `factor` times its work; then all wait.
    """

    def __init__(self, factor: float = 4.0) -> None:
        self._factor = factor
        self._serials = count()
        self._entries: dict[str, _Entry] = {}
        self._levels: dict[int, _Level] = {}
        self._passed = 0.0  # work that has started of the highest while lower ones waited
        self._candidates: list[Job] | None = None  # kept until something changes

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, job: Job, is_due: bool = False) -> None:
        """`is_due`: before others of its client and priority, whatever their work."""
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
        """The best jobs, in order: the first that has room is to start."""
        if self._candidates is None:
            self._candidates = []
            for entry in islice(self._ordered(), LOOK_AHEAD):
                self._candidates.append(entry.job)
                if entry.passed >= self._factor * entry.work:
                    break
        return self._candidates

    def start(self, identifier: str) -> None:
        """Take a candidate out, to run."""
        entry, queue = self._entries[identifier], self._entries[identifier].queue
        for better in self.candidates():
            if better.identifier == identifier:
                break
            self._entries[better.identifier].passed += entry.work
        level = queue.level
        if len(self._levels) > 1:
            if entry.job.priority == max(self._levels):
                self._passed += entry.work
            elif self.candidates()[0] is entry.job:  # not for want of room for others
                self._passed, level.turn = 0.0, next(self._serials)
        level.time = max(level.time + entry.work / len(level.queues), queue.tag)
        queue.tag += entry.work
        queue.clock += entry.work
        self.remove(identifier)

    def remove(self, identifier: str) -> Job | None:
        """It, if it was there."""
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
        """As they would start if each had room and nothing came in between."""
        return tuple(entry.job.identifier for entry in self._ordered())

    def _ordered(self) -> Iterator[_Entry]:
        """By priority and turn, as `start` goes on."""
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
