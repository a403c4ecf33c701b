"""The generator's results of a job as the engine's events. Engine thread only."""

from typing import Any

from switchyard.engine.backends.exl2.job import Exl2Job
from switchyard.engine.backends.exl2.load.faults import explain
from switchyard.engine.errors import (
    BatchFailed,
    DeviceLost,
    EngineError,
    Failure,
    InvalidJob,
    JobFailed,
)
from switchyard.engine.messages import Chunk, Failed, Finished, JobEvent, Prefill, PromptLogprobs


def prefill(job: Exl2Job, result: dict[str, Any], page_size: int) -> Prefill:
    cached = job.cached_pages * page_size + job.cached_tokens
    done, total = result["curr_progress"], result["max_progress"]
    return Prefill(job.job.identifier, done, total, cached)


def scored(job: Exl2Job, result: dict[str, Any]) -> list[JobEvent]:
    """Of a prompt, with the job's end if it asked for nothing else."""
    identifier, prompt_tokens = job.job.identifier, len(job.job.prompt)
    end = [Finished(identifier, "length", prompt_tokens, 0, 0)] if result["eos"] else []
    return [PromptLogprobs(identifier, tuple(job.prompt_logprobs)), *end]


def chunks(result: dict[str, Any]) -> list[JobEvent]:
    chunk: Chunk = result["chunk"]
    return [chunk] if chunk.token_ids else []


def last(job: Exl2Job, result: dict[str, Any]) -> list[JobEvent]:
    finished = Finished(
        result["identifier"],
        "length" if result["eos_reason"] == "max_new_tokens" else "stop",
        prompt_tokens=len(job.job.prompt),
        new_tokens=result["new_tokens"],
        cached_tokens=result["cached_tokens"],
        stop_reason=result.get("stop_reason"),
        stop_token=result.get("stop_token"),
        draft_tokens=job.accepted_draft_tokens + job.rejected_draft_tokens,
        accepted_tokens=job.accepted_draft_tokens,
    )
    return [*chunks(result), finished]


def cancelled(job: Exl2Job) -> list[JobEvent]:
    """What it had not told yet, and its end."""
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
    """Raises DeviceLost, if that is what it was."""
    if error is None:
        return Failed(identifier, BatchFailed("an iteration failed, and its result was lost"))
    fault = explained(error)
    if isinstance(fault, DeviceLost):
        raise fault
    return Failed(identifier, fault)


def explained(error: BaseException) -> EngineError:
    """What it means for a job; DeviceLost if for all of them."""
    fault = explain(error)
    if isinstance(fault, Failure | InvalidJob | DeviceLost):
        return fault
    return JobFailed(f"{type(error).__name__}: {error}")
