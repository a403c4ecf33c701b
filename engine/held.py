"""The jobs that an engine holds, tracked by their events."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from switchyard.engine.errors import EngineError
from switchyard.engine.job import Job
from switchyard.engine.messages import (
    Chunk,
    Failed,
    Finished,
    FinishReason,
    JobEvent,
    JobState,
    ModelInfo,
    Parked,
    Phase,
    Prefill,
    PutBack,
    Started,
)
from switchyard.engine.schedule.rate import CompletionRate
from switchyard.engine.schedule.usual import UsualAnswers
from switchyard.engine.stream import Stream, Used

Batches = dict[Stream, tuple[JobEvent, ...]]  # a list would need two allocations per token


class Tracked:
    """One job from its submission to its end, tracked by its events."""

    __slots__ = ("job", "new_tokens", "state", "submitted")

    def __init__(self, job: Job, submitted: float) -> None:
        """`submitted`: the time of submission, on the monotonic clock."""
        self.job = job
        self.submitted = submitted
        self.state: Phase = "pending"
        self.new_tokens = 0

    def note(self, event: JobEvent) -> None:
        if isinstance(event, Chunk):  # nearly always
            self.state = "decode"
            self.new_tokens += len(event.token_ids)
        elif isinstance(event, PutBack):
            self.state = "pending"
        elif isinstance(event, Started):
            self.state = "prefill"
        elif isinstance(event, Parked):
            self.state = "decode" if self.new_tokens else "prefill"
            if not event.is_over:
                self.state = "parked"

    def tell(self, place: int | None, info: ModelInfo | None, now: float) -> JobState:
        """`info`: the loaded model's properties; before the load, jobs have no pages. `now`: a time
        on the monotonic clock, the same for all jobs in a list, so that their ages are in order.
        """
        job, num_pages = self.job, 0
        if info is not None and self.state in ("prefill", "decode"):
            num_new = min(self.new_tokens + 1, job.max_new_tokens) + info.num_draft_tokens
            num_pages = job.num_pages(info.page_size, num_new)
        return JobState(
            identifier=job.identifier,
            state=self.state,
            place=place if self.state == "pending" else None,
            prompt_tokens=len(job.prompt),
            new_tokens=self.new_tokens,
            age=now - self.submitted,
            num_pages=num_pages,
            priority=job.priority,
            request_id=job.request_id,
            owner=job.owner,
            client=job.client,
        )


class Held(Tracked):
    """A job whose stream waits for its events. The engine's lock guards this object."""

    __slots__ = ("cached_tokens", "is_spent", "limit", "stream")

    def __init__(self, job: Job, stream: Stream) -> None:
        super().__init__(job, time.monotonic())
        self.stream = stream
        self.cached_tokens: int | None = None  # None before the lookup in the cache
        self.limit: float = 0 if stream.on_use is not None else math.inf  # new tokens granted
        self.is_spent = False  # whether it may get no more tokens

    def account(self, event: JobEvent) -> None:
        """Report the job's usage to the stream, after each event that changes the usage."""
        if self.stream.on_use is None:
            return
        is_lookup = isinstance(event, Prefill) and self.cached_tokens is None
        is_end = isinstance(event, Finished | Failed)
        if isinstance(event, Prefill | Finished) and self.cached_tokens is None:
            if is_lookup:
                self.cached_tokens = event.cached_tokens
            elif self.state != "pending":  # a `Finished` has the mean over the sequences
                self.cached_tokens = event.cached_tokens * self.job.num_sequences
        if is_lookup or is_end:
            self._tell(event)

    def spend(self, event: Chunk) -> bool:
        """Request more tokens if the job has used up its allowance. Returns whether the job must
        end now.
        """
        if self.is_spent or self.new_tokens < self.limit:
            return False
        if self.new_tokens >= self.job.max_new_tokens:  # its last event follows
            return False
        self._tell(event)
        self.is_spent = self.new_tokens >= self.limit
        return self.is_spent

    def end(self, event: JobEvent) -> JobEvent:
        """Returns the job's last event for its client."""
        if self.is_spent and isinstance(event, Finished) and event.finish_reason == "cancelled":
            return replace(event, finish_reason="length", stop_reason="quota")
        return event

    def _tell(self, event: JobEvent) -> None:
        assert self.stream.on_use is not None
        most = self.stream.on_use(self._used(event))
        self.limit = math.inf if most is None else most

    def _used(self, event: JobEvent) -> Used:
        num_prompt, cached = self.job.num_prompt_tokens, self.cached_tokens
        return Used(
            identifier=event.identifier,
            prompt_tokens=num_prompt,
            cached_tokens=cached or 0,
            computed_tokens=0 if cached is None else num_prompt - cached,
            new_tokens=self._sampled_tokens(event) * self.job.num_sequences,
            reason=_reason(event),
            timings=event.timings if isinstance(event, Finished) else None,
            num_sequences=self.job.num_sequences,
        )

    def _sampled_tokens(self, event: JobEvent) -> int:
        if isinstance(event, Finished):
            return max(event.new_tokens, event.sampled_tokens)
        return self.new_tokens


def _reason(event: JobEvent) -> FinishReason | Literal["failed"] | None:
    match event:
        case Finished():
            return event.finish_reason
        case Failed():
            return "failed"
    return None


class Backlog(NamedTuple):
    """The numbers of jobs and waiting prompt tokens that an engine holds. The object is replaced
    under the engine's lock, but refusals read it without the lock, because threads waiting for the
    lock would delay every stream.
    """

    num_jobs: int = 0  # jobs that have not ended
    num_waiting: int = 0  # those of them that have not started
    num_tokens: int = 0  # prompt tokens of the waiting jobs

    def moved(self, job: Job, before: Phase | None, after: Phase | None) -> "Backlog":
        """The backlog after a change of the job's phase. A phase of None means that the engine does
        not hold the job.
        """
        waits = (after == "pending") - (before == "pending")
        return Backlog(
            self.num_jobs + (after is not None) - (before is not None),
            self.num_waiting + waits,
            self.num_tokens + waits * job.num_prompt_tokens,
        )


class HeldJobs:
    """All jobs that have not ended. The engine's lock guards this object; any thread may read
    `backlog`.
    """

    def __init__(self) -> None:
        self.rate = CompletionRate()
        self.backlog = Backlog()
        self._usual = UsualAnswers()
        self._held: dict[str, Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, identifier: str) -> bool:
        return identifier in self._held

    def pending(self, identifier: str) -> Job | None:
        """Returns the job if it is waiting."""
        held = self._held.get(identifier)
        return held.job if held is not None and held.state == "pending" else None

    def tell(self, places: Mapping[str, int], info: ModelInfo | None) -> list[JobState]:
        now = time.monotonic()
        return [one.tell(places.get(i), info, now) for i, one in self._held.items()]

    def add(self, jobs: Sequence[Job], stream: Stream, now: float) -> list[Job]:
        """Add jobs. Returns them with `usual_tokens` set. `now`: a time on the monotonic clock."""
        if not self._held:
            self.rate.resume(now)
        usual = [math.ceil(self._usual.of(job.client, job.kind)) for job in jobs]
        jobs = [replace(job, usual_tokens=num) for job, num in zip(jobs, usual, strict=True)]
        for job in jobs:
            self._held[job.identifier] = Held(job, stream)
            self.backlog = self.backlog.moved(job, None, "pending")
        return jobs

    def pass_on(self, event: JobEvent, batches: Batches) -> bool:
        """Put an event into its job's stream. Events of jobs that have ended are dropped. Returns
        whether the job must be cancelled because it may generate no more tokens.
        """
        held = self._held.get(event.identifier)
        if held is None:
            return False
        before = held.state
        held.note(event)
        if held.state != before:
            self.backlog = self.backlog.moved(held.job, before, held.state)
        has_to_end = False
        if isinstance(event, Chunk):
            has_to_end = held.new_tokens >= held.limit and held.spend(event)
        elif isinstance(event, Finished | Failed):
            del self._held[event.identifier]
            self.backlog = self.backlog.moved(held.job, held.state, None)
            self.rate.note(time.monotonic())
            self._note_answer(held.job, event)
            event = held.end(event)
            held.account(event)
        elif isinstance(event, Prefill):
            held.account(event)
        elif isinstance(event, Parked):
            return False
        stream = held.stream
        batches[stream] = (*batches.get(stream, ()), event)
        return has_to_end

    def _note_answer(self, job: Job, event: Finished | Failed) -> None:
        if isinstance(event, Finished) and event.finish_reason != "cancelled":
            self._usual.note(job.client, job.kind, event.new_tokens)

    def fail_all(self, error: Callable[[Phase], EngineError], batches: Batches) -> None:
        """End all jobs, each with the error for its phase."""
        for held in self._held.values():
            event = Failed(held.job.identifier, error(held.state))
            held.account(event)
            batches[held.stream] = (*batches.get(held.stream, ()), event)
        self._held.clear()
        self.backlog = Backlog()
