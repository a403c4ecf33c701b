"""The results of an iteration for a job, passed from `Exl2Job` or the library to `Exl2Backend`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from switchyard.engine.messages import Chunk, TokenLogprob


@dataclass(frozen=True, slots=True)
class JobBegun:
    identifier: str


@dataclass(frozen=True, slots=True)
class JobMoved:
    """The job has released its pages, or has pages again."""

    identifier: str
    is_parked: bool


@dataclass(frozen=True, slots=True)
class PromptComputed:
    """The prompt has been computed up to `done_tokens`, which includes the tokens in both prompts
    of a pair.
    """

    identifier: str
    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class PromptScored:
    identifier: str
    is_end: bool  # whether no token is to be generated


@dataclass(frozen=True, slots=True)
class JobEnd:
    is_at_limit: bool
    new_tokens: int
    cached_tokens: int
    stop_reason: str | int | None
    stop_token: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class TokenTold:
    identifier: str
    chunk: Chunk  # empty while its text is held back
    end: JobEnd | None = None


@dataclass(frozen=True, slots=True)
class JobBroken:
    """A failure of this job alone. After a failure in `prefill`, the job stays active and must be
    cancelled; after any other failure, the generator has released it.
    """

    identifier: str
    error: BaseException


Result = JobBegun | JobMoved | PromptComputed | PromptScored | TokenTold | JobBroken


def of_library(results: Iterable[dict[str, Any] | Result]) -> list[Result]:
    """Converts the library's own results, which only report that a job has started, to `JobBegun`.
    All other results are our own and remain unchanged. The library also reports the start of a
    parked job that returns; that result is dropped, because the job started earlier.
    """
    return [
        JobBegun(result["identifier"]) if isinstance(result, dict) else result
        for result in results
        if not isinstance(result, dict) or not result["job"].was_parked
    ]
