"""A job that an engine holds: what it knows of it from its events."""

import time
from dataclasses import dataclass
from typing import Literal

from switchyard.engine.job import Job
from switchyard.engine.messages import Chunk, JobEvent, ModelInfo, PutBack, Started
from switchyard.engine.stream import Stream

Phase = Literal["pending", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class JobState:
    identifier: str
    state: Phase
    place: int | None  # among those that wait, 1 is next; None if active or not known
    prompt_tokens: int
    new_tokens: int  # told so far
    age: float  # seconds since it was submitted
    num_pages: int  # held now
    priority: int
    request_id: str
    owner: str


class Held:
    """One job from `submit` to its end. Its engine's lock guards it."""

    __slots__ = ("job", "new_tokens", "state", "stream", "submitted")

    def __init__(self, job: Job, stream: Stream) -> None:
        self.job = job
        self.stream = stream
        self.submitted = time.monotonic()
        self.state: Phase = "pending"
        self.new_tokens = 0

    def note(self, event: JobEvent) -> None:
        match event:
            case Chunk():
                self.state = "decode"
                self.new_tokens += len(event.token_ids)
            case PutBack():
                self.state = "pending"
            case Started():
                self.state = "prefill"

    def tell(self, place: int | None, info: ModelInfo | None, now: float) -> JobState:
        """`info` of a model that is loaded: before that, jobs have no pages. `now`, by the
        monotonic clock, is the same for all jobs of a list: no older one is told to be younger.
        """
        job, num_pages = self.job, 0
        if info is not None and self.state != "pending":
            num_pages = job.num_pages(info.page_size, info.num_draft_tokens)
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
        )
