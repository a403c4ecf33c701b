"""The jobs that an engine thread has given to its backend. Used only on the engine thread."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from switchyard.engine.errors import BatchFailed
from switchyard.engine.job import Job
from switchyard.engine.messages import Chunk, Failed, Finished, JobEvent, PromptLogprobs
from switchyard.engine.schedule.repetition import LoopDetector

GROW_AFTER = 100  # iterations with a token until the limit grows by one job


@dataclass(slots=True)
class Loop:
    """A job whose text repeats itself. `last`: the job's end, if it came in the same iteration."""

    job: Job
    new_tokens: int  # up to the end of the loop's last chunk
    last: Finished | Failed | None = None

    def finish(self, ends: Iterable[JobEvent]) -> Finished:
        """The job's `Finished`, with the counts of the generator's `Finished`, if there is one."""
        end = Finished(
            self.job.identifier,
            "stop",
            len(self.job.prompt),
            self.new_tokens,
            cached_tokens=0,
            stop_reason="loop",
        )
        for told in ends:
            if isinstance(told, Finished):
                end = replace(
                    end,
                    cached_tokens=told.cached_tokens,
                    draft_tokens=told.draft_tokens,
                    accepted_tokens=told.accepted_tokens,
                    sampled_tokens=told.new_tokens,
                )
        return end


class Batch:
    """Knows which jobs may run again, and how many may run at once. A job whose client has received
    no text yet can start over unnoticed. It does so only once, because it may be the job that makes
    the batch fail.
    """

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._limit = max_size
        self._num_good = 0
        self.num_tokens = 0  # sent so far, all jobs together
        self._jobs: dict[str, Job] = {}
        self._emitted: set[str] = set()
        self._put_back: set[str] = set()  # including waiting jobs
        self._detectors: dict[str, LoopDetector] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, identifier: str) -> bool:
        return identifier in self._jobs

    @property
    def identifiers(self) -> list[str]:
        return list(self._jobs)

    @property
    def is_full(self) -> bool:
        return len(self._jobs) >= self._limit

    def add(self, job: Job) -> None:
        self._jobs[job.identifier] = job
        if job.stop_on_loop:
            self._detectors[job.identifier] = LoopDetector(job.min_new_tokens)

    def end(self, identifier: str) -> None:
        """Forget a job, even if it was put back and is waiting."""
        self._jobs.pop(identifier, None)
        self._emitted.discard(identifier)
        self._detectors.pop(identifier, None)
        self._put_back.discard(identifier)

    def note(self, events: Iterable[JobEvent]) -> bool:
        """Process the events of an iteration. Returns whether the iteration produced a token."""
        is_good = False
        for event in events:
            match event:
                case PromptLogprobs(identifier):
                    self._emitted.add(identifier)
                case Chunk(identifier):
                    self._emitted.add(identifier)
                    self.num_tokens += len(event.token_ids)
                    is_good = True
                case Finished(identifier):
                    self.end(identifier)
                    is_good = True
                case Failed(identifier):
                    self.end(identifier)
        if is_good:
            self._grow()
        return is_good

    def cut_loops(self, events: list[JobEvent]) -> tuple[list[JobEvent], list[Loop]]:
        """Returns the events of an iteration that are to be delivered, and the jobs whose text
        began to repeat itself. After the chunk that completes a loop, a job's events are dropped,
        so that the result does not depend on the number of draft tokens. Each job is returned once,
        and stays in the batch until `end`.
        """
        if not self._detectors:
            return events, []
        kept: list[JobEvent] = []
        loops: dict[str, Loop] = {}
        for event in events:
            identifier = event.identifier
            if (loop := loops.get(identifier)) is not None:
                if isinstance(event, Finished | Failed):
                    loop.last = event
                continue
            kept.append(event)
            detector = self._detectors.get(identifier)
            if detector is None or not isinstance(event, Chunk):
                continue
            if detector.add_all(event.token_ids):
                loops[identifier] = Loop(self._jobs[identifier], detector.count)
        return kept, list(loops.values())

    def put_back(self, identifier: str) -> Job | None:
        """Take a job out of the batch and return it, so that it can run again. Returns None if the
        job must not run again.
        """
        if identifier in self._emitted or identifier in self._put_back:
            return None
        self._put_back.add(identifier)
        self._detectors.pop(identifier, None)
        return self._jobs.pop(identifier)

    def break_up(self, cause: str) -> tuple[list[Job], list[Failed]]:
        """Take the jobs that may run again out of the batch, and end the others."""
        again = [self.put_back(identifier) for identifier in self.identifiers]
        return [job for job in again if job is not None], self._fail(cause)

    def _fail(self, cause: str) -> list[Failed]:
        failed = [Failed(identifier, BatchFailed(cause)) for identifier in self._jobs]
        self.note(failed)
        return failed

    def halve(self) -> None:
        """Temporarily halve the number of jobs that run at once, because memory ran out."""
        self._limit = max(min(len(self._jobs), self._limit) // 2, 1)
        self._num_good = 0

    def _grow(self) -> None:
        if self._limit < self._max_size:
            self._num_good += 1
            if self._num_good % GROW_AFTER == 0:
                self._limit += 1
