"""Commands to an engine thread, and events from it. All are plain, frozen and picklable."""

from dataclasses import dataclass, field
from typing import Any, Literal

from switchyard.engine.errors import EngineError
from switchyard.engine.job import Job
from switchyard.engine.stats import Stats

FinishReason = Literal["stop", "length", "cancelled"]
Phase = Literal["pending", "prefill", "decode", "parked"]


# Commands: into the engine thread


@dataclass(frozen=True, slots=True)
class Submit:
    job: Job
    time: float  # on the monotonic clock


@dataclass(frozen=True, slots=True)
class Cancel:
    identifier: str


@dataclass(frozen=True, slots=True)
class ListPending:
    """The engine thread replies with a `PendingList` that has the same serial."""

    serial: int


@dataclass(frozen=True, slots=True)
class ListJobs:
    """Sent to an engine that several servers share. The engine replies with a `JobList` that has
    the same serial.
    """

    serial: int


@dataclass(frozen=True, slots=True)
class Demand:
    """The number of jobs in this server that any engine may take. Sent to engines that several
    servers share.
    """

    num_waiting: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """Forget all jobs so far, because `Hanging` has already ended them, and recover."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End every job with `Failed(Closed)`, release the model, and end the thread."""


Command = Submit | Cancel | ListPending | ListJobs | Demand | Abandon | Stop


# Events: out of the engine thread


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The properties of a warm model. Lengths are in tokens."""

    max_seq_len: int
    vocab_size: int
    page_size: int
    num_pages: int
    device: str
    cache_mode: str = "float32"  # how the cache holds keys and values
    num_draft_tokens: int = 0  # guessed in one step; each job needs pages for them too
    loras: tuple[str, ...] = ()  # names
    products: str | None = None  # `own`, or `exllamav2: REASON`; None on a CPU


@dataclass(frozen=True, slots=True)
class LoadProgress:
    share: float  # from 0 to 1


@dataclass(frozen=True, slots=True)
class Loaded:
    info: ModelInfo


@dataclass(frozen=True, slots=True)
class Stopped:
    """The last event of an engine thread. `error` is None after a `Stop`."""

    error: EngineError | None


@dataclass(frozen=True, slots=True)
class Restarting:
    """The process of the engine thread has ended, and all jobs with it. Another process loads the
    model, so `Loaded` or `Stopped` follows.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Recovering:
    """The generator has failed. Until `Recovered`, jobs are accepted, but wait."""

    reason: str


@dataclass(frozen=True, slots=True)
class Recovered:
    pass


@dataclass(frozen=True, slots=True)
class Hanging:
    """The engine thread is stuck in its backend. `Recovered` follows if the backend returns."""

    reason: str


ReplicaStatus = Literal["loading", "ready", "recovering", "hanging", "stopped", "leaving"]


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The state of one of several engine threads that serve a model, each in its own process."""

    status: ReplicaStatus
    reason: str  # the cause if it isn't ready
    num_jobs: int  # of this replica
    gpus: tuple[int, ...]  # empty: all
    at: str  # the address of an engine that several servers share; empty: this server's own engine
    pid: int | None
    num_restarts: int
    num_hangs: int


@dataclass(frozen=True, slots=True)
class ReplicaStates:
    """The states of a loaded model's replicas. While no replica is ready, jobs are accepted, but
    wait. Jobs are refused while all remaining replicas hang.
    """

    states: tuple[ReplicaState, ...]


@dataclass(frozen=True, slots=True)
class Zombies:
    """The number of jobs that were ended because the generator and engine disagreed about them."""

    count: int


@dataclass(frozen=True, slots=True)
class PendingList:
    """The waiting jobs, in the order of the queue."""

    serial: int
    identifiers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobState:
    identifier: str
    state: Phase
    place: int | None  # among those that wait, 1 is next; None if active or not known
    prompt_tokens: int
    new_tokens: int  # sent so far
    age: float  # seconds since it was submitted
    num_pages: int  # held now
    priority: int
    request_id: str
    owner: str
    client: str


@dataclass(frozen=True, slots=True)
class JobList:
    """The jobs of all servers."""

    serial: int
    jobs: tuple[JobState, ...]


@dataclass(frozen=True, slots=True)
class Started:
    identifier: str
    queue: float = field(default=0.0, compare=False)  # seconds since the submission


@dataclass(frozen=True, slots=True)
class PutBack:
    """The job waits again, because the batch failed before the job's client had received any
    text.
    """

    identifier: str


@dataclass(frozen=True, slots=True)
class Parked:
    """The job has given up its pages to other jobs, or has pages again. This event is not passed to
    streams.
    """

    identifier: str
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Queued:
    """The position of a job in the queue, where 1 is next. `Engine.queued` returns it."""

    identifier: str
    place: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Prefill:
    identifier: str
    done_tokens: int  # including those found in the cache
    total_tokens: int
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's logprob, from the model's raw logits over its whole vocabulary, before sampling
    changes them.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), most probable first


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """One entry for each token in the prompt; the first entry is None. Sent before the first
    `Chunk`.
    """

    identifier: str
    logprobs: tuple[TokenLogprob | None, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """New text. `logprobs`: one for each of `token_ids`, if the job requested logprobs."""

    identifier: str
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles ten times as fast as pickle's default for a dataclass with slots."""
        return Chunk, (self.identifier, self.text, self.token_ids, self.logprobs)


@dataclass(frozen=True, slots=True)
class Timings:
    """The seconds from the submission to the start, to the first token sent, and to the end."""

    queue: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0


@dataclass(frozen=True, slots=True)
class Finished:
    """`new_tokens` counts sampled tokens, excluding the stop token. `stop_reason`: the job's stop
    string or member of `stop_token_ids` that ended the text; "loop" for `stop_on_loop`; "quota" for
    a job that may generate no more tokens. `stop_token`: the token that ended the job, if the job
    requested logprobs.
    """

    identifier: str
    finish_reason: FinishReason
    prompt_tokens: int
    new_tokens: int
    cached_tokens: int
    stop_reason: str | int | None = None
    stop_token: TokenLogprob | None = None
    draft_tokens: int = 0  # guessed
    accepted_tokens: int = 0  # of the draft tokens
    # `new_tokens` plus the tokens after a loop; 0: the same as `new_tokens`. For accounting only.
    sampled_tokens: int = field(default=0, compare=False)
    timings: Timings = field(default=Timings(), compare=False)  # measured by the engine thread


@dataclass(frozen=True, slots=True)
class Failed:
    identifier: str
    error: EngineError


JobEvent = (
    Started | PutBack | Parked | Queued | Prefill | PromptLogprobs | Chunk | Finished | Failed
)
# Events of the engine thread itself
_LifeEvent = LoadProgress | Loaded | Stopped | Restarting | Recovering | Recovered | Hanging
ThreadEvent = _LifeEvent | ReplicaStates | Zombies | PendingList | JobList | Stats
Event = ThreadEvent | JobEvent
