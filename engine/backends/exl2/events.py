"""Turns the generator's results into events. Used only on the engine thread."""

from switchyard.engine.backends.exl.faults import explain
from switchyard.engine.backends.exl.results import PromptComputed, PromptScored, TokenTold
from switchyard.engine.backends.exl2.job import Exl2Job
from switchyard.engine.errors import (
    BatchFailed,
    DeviceLost,
    EngineError,
    Failure,
    InvalidJob,
    JobFailed,
)
from switchyard.engine.messages import Failed, Finished, JobEvent, Prefill, PromptLogprobs


def prefill(job: Exl2Job, result: PromptComputed) -> Prefill:
    return Prefill(result.identifier, result.done_tokens, result.total_tokens, job.num_found)


def scored(job: Exl2Job, result: PromptScored) -> list[JobEvent]:
    """Returns the logprobs of a prompt, and the job's end if it generates no tokens."""
    identifier, prompt_tokens = result.identifier, len(job.job.prompt)
    end = [Finished(identifier, "length", prompt_tokens, 0, 0)] if result.is_end else []
    return [PromptLogprobs(identifier, tuple(job.prompt_logprobs)), *end]


def told(job: Exl2Job, result: TokenTold) -> list[JobEvent]:
    """Returns the text of a token, and the job's end if this token is the last."""
    chunk = result.chunk
    events: list[JobEvent] = [chunk] if chunk.token_ids or chunk.text else []
    if (end := result.end) is not None:
        finished = Finished(
            result.identifier,
            "length" if end.is_at_limit else "stop",
            prompt_tokens=len(job.job.prompt),
            new_tokens=end.new_tokens,
            cached_tokens=end.cached_tokens,
            stop_reason=end.stop_reason,
            stop_token=end.stop_token,
            draft_tokens=job.accepted_draft_tokens + job.rejected_draft_tokens,
            accepted_tokens=job.accepted_draft_tokens,
        )
        events.append(finished)
    return events


def cancelled(job: Exl2Job) -> list[JobEvent]:
    """Returns the text that has not been sent yet, and the job's end."""
    finished = Finished(
        job.job.identifier,
        "cancelled",
        prompt_tokens=len(job.job.prompt),
        new_tokens=job.num_sampled,
        cached_tokens=job.num_cached,
        draft_tokens=job.accepted_draft_tokens + job.rejected_draft_tokens,
        accepted_tokens=job.accepted_draft_tokens,
    )
    try:
        told = job.flush()
    except BaseException as error:
        return [failed(job.job.identifier, error)]
    return [*told, finished]


def failed(identifier: str, error: BaseException | None) -> Failed:
    """Returns the job's failure. If the error is DeviceLost, raises it."""
    if error is None:
        return Failed(identifier, BatchFailed("an iteration failed, and its result was lost"))
    fault = explained(error)
    if isinstance(fault, DeviceLost):
        raise fault
    return Failed(identifier, fault)


def explained(error: BaseException) -> EngineError:
    """Returns the error of a job, or DeviceLost if the error concerns all jobs."""
    fault = explain(error)
    if isinstance(fault, Failure | InvalidJob | DeviceLost):
        return fault
    return JobFailed(f"{type(error).__name__}: {error}")
