"""Decides which jobs an engine accepts. Does no I/O, and can be used on any thread."""

from collections.abc import Collection, Iterator
from typing import Literal, Protocol

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import (
    BatchFailed,
    Closed,
    Dead,
    Draining,
    EngineError,
    Full,
    InvalidJob,
    Loading,
    PromptTooLong,
    Stalled,
)
from switchyard.engine.held import Backlog
from switchyard.engine.job import Job
from switchyard.engine.messages import ModelInfo, Phase
from switchyard.engine.schedule.rate import CompletionRate

SHUT_DOWN = "the server has shut down"

RETRY_LOADING = 5.0  # seconds: a model takes from seconds to minutes
MAX_RETRY_AFTER = 120.0  # seconds: OpenAI's clients don't retry after a longer time
RETRY_STARTED = 10.0  # seconds: another process must start and load

Trouble = Literal["recovering", "hanging"]
State = Literal["loading", "ready", "draining", "stopped"] | Trouble


class Stands(Protocol):
    """The state of an engine. `max_jobs`: the maximum number of jobs that its configuration
    allows.
    """

    @property
    def state(self) -> State: ...

    error: EngineError | None

    def max_jobs(self, config: ModelConfig) -> int: ...


def check_number(num_jobs: int, max_jobs: int) -> None:
    """Raises InvalidJob if there are more jobs than the engine could ever hold."""
    if num_jobs > max_jobs:
        raise InvalidJob(
            f"{num_jobs} choices exceed the {max_jobs} jobs that this server can hold",
            "n",
        )


def max_new_tokens(
    prompt_tokens: int, asked: int | None, info: ModelInfo, config: ModelConfig
) -> int:
    """Does the work of `Engine.max_new_tokens`."""
    limit = most_tokens(info)
    room = limit - prompt_tokens
    default = room if config.default_max_tokens is None else config.default_max_tokens
    wanted = max(min(default, room), 1) if asked is None else asked
    if wanted > room:
        guesses = f", less {info.num_draft_tokens} for guesses" * bool(info.num_draft_tokens)
        raise PromptTooLong(
            f"{prompt_tokens} prompt tokens and {wanted} new tokens are more than the model's"
            f" context of {info.max_seq_len} tokens, or the cache of"
            f" {info.num_pages} pages of {info.page_size} tokens{guesses}",
            "prompt" if room < 1 else "max_new_tokens",
            prompt_tokens,
            wanted,
            limit,
        )
    return wanted


def most_tokens(info: ModelInfo) -> int:
    """The maximum number of tokens in a job's prompt and completion together."""
    return min(info.max_seq_len, info.num_pages * info.page_size) - info.num_draft_tokens


def fits(job: Job, info: ModelInfo) -> bool:
    """Whether an engine with this context and cache can hold the job."""
    num_new = job.max_new_tokens + info.num_draft_tokens
    longest = max(len(job.prompt), len(job.negative_prompt))
    return (
        longest + num_new <= info.max_seq_len
        and job.num_pages(info.page_size, num_new) <= info.num_pages
    )


def check(job: Job, info: ModelInfo, config: ModelConfig) -> None:
    """Raises Rejected for a job that would fail in the generator, or would harm other jobs
    there.
    """
    if not job.prompt:
        raise InvalidJob("the prompt is empty", "prompt")
    for name, token_ids in _token_ids(job):
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < info.vocab_size:
            raise InvalidJob(
                f"{name} has a token id outside the vocabulary of {info.vocab_size}", name
            )
    if job.priority > config.max_priority:
        raise InvalidJob(
            f"priority {job.priority} is above the maximum of this server, {config.max_priority}",
            "priority",
        )
    for name in ("num_logprobs", "prompt_logprobs"):
        if not 0 <= (getattr(job, name) or 0) <= info.vocab_size:
            raise InvalidJob(f"{name} must be from 0 to {info.vocab_size}", name)
    if job.max_new_tokens < (job.prompt_logprobs is None):
        raise InvalidJob("the request must allow at least one new token", "max_new_tokens")
    if job.min_new_tokens > job.max_new_tokens:
        raise InvalidJob(
            f"min_tokens {job.min_new_tokens} exceeds max_tokens, which is {job.max_new_tokens}",
            "min_new_tokens",
        )
    max_new_tokens(len(job.prompt), job.max_new_tokens, info, config)
    if job.healing is not None and (job.num_logprobs, job.prompt_logprobs) != (None, None):
        raise InvalidJob(
            "logprobs don't work with token healing, which removes a token from the prompt",
            "healing",
        )
    if job.negative_prompt:
        _check_pair(job, info, config)
    if job.constraint is not None:
        _check_constraint(job)
    if job.forced is not None and not all(
        0 <= token_id < info.vocab_size for token_id in job.forced.token_ids
    ):
        raise InvalidJob("a forced token is outside the vocabulary", "forced")


def _check_constraint(job: Job) -> None:
    for name, is_given in (
        ("ignore_eos", job.ignore_eos),
        ("min_new_tokens", job.min_new_tokens > 0),
        ("healing", job.healing is not None),  # its first token holds text of the prompt
    ):
        if is_given:
            raise InvalidJob(
                f"{name} can't be combined with a constraint, because the completion ends where the"
                " constraint is complete",
                name,
            )


def _check_pair(job: Job, info: ModelInfo, config: ModelConfig) -> None:
    try:
        max_new_tokens(len(job.negative_prompt), job.max_new_tokens, info, config)
    except PromptTooLong as error:
        raise PromptTooLong(f"negative_prompt: {error}", "negative_prompt") from None
    num_pages = job.num_pages(info.page_size, job.max_new_tokens + info.num_draft_tokens)
    if num_pages > info.num_pages or job.num_sequences > config.max_batch_size:
        raise InvalidJob(
            f"with a negative prompt, the job needs {num_pages} of {info.num_pages} pages in the"
            f" cache and 2 of {config.max_batch_size} places in the batch",
            "negative_prompt",
        )
    if job.prompt_logprobs is not None:
        raise InvalidJob("a prompt can't be scored with a negative prompt", "negative_prompt")


def refusal(
    stands: Stands,
    backlog: Backlog,
    rate: CompletionRate,
    config: ModelConfig,
    now: float,
    num_jobs: int = 0,
    prompt_tokens: int = 0,
) -> EngineError | None:
    """Returns a new error if an engine in this state, with this backlog, can't accept `num_jobs`
    more jobs with `prompt_tokens` tokens now. Otherwise returns None.
    """
    state, max_jobs = stands.state, stands.max_jobs(config)
    if state not in ("ready", "recovering"):
        return _unavailable(state, stands.error, config.name)
    num_tokens, limit = backlog.num_tokens, config.max_pending_tokens
    if backlog.num_jobs + num_jobs > max_jobs:
        message = f"the queue is full: {backlog.num_jobs} of {max_jobs} jobs are active or waiting"
    elif num_tokens and num_tokens + prompt_tokens > limit:
        message = f"the queue is full: {num_tokens} of {limit} prompt tokens are waiting"
    else:
        return None
    retry_after = rate.seconds(backlog.num_waiting + num_jobs, now)
    return Full(message, min(max(retry_after, 1.0), MAX_RETRY_AFTER))


def end(phase: Phase, state: State, error: EngineError | None, name: str) -> EngineError:
    """Returns a new error for a job that an engine gives up. A job that has not begun can run
    elsewhere.
    """
    if error is None:
        return Closed(
            f"model {name} ended during this answer: it was unloaded or replaced, or the server"
            " has shut down"
        )
    if phase == "pending":
        return _unavailable(state, error, name)
    return BatchFailed(str(error))


def loading(name: str) -> Loading:
    return Loading(f"model {name} is loading", RETRY_LOADING)


def _unavailable(state: State, error: EngineError | None, name: str) -> EngineError:
    match state:
        case "loading":
            return loading(name)
        case "draining":
            return Draining(f"model {name} is shutting down", RETRY_STARTED)
        case "hanging":
            reason = error or "a step of the generator does not return"
            return Stalled(f"model {name}: {reason}", RETRY_STARTED)
    return Dead(f"model {name}: {SHUT_DOWN if error is None else error}", RETRY_STARTED)


def _token_ids(job: Job) -> Iterator[tuple[str, Collection[int]]]:
    """The token ids of a job, by parameter."""
    sampling = job.sampling
    yield "prompt", job.prompt
    yield "negative_prompt", job.negative_prompt
    yield "stop_token_ids", job.stop_token_ids
    yield "logit_bias", [token_id for token_id, _ in sampling.logit_bias]
    yield "banned_token_ids", sampling.banned_token_ids
    yield "allowed_token_ids", sampling.allowed_token_ids
