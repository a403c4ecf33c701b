"""What an iteration has brought for a job: from `Exl2Job`, or the library, to `Exl2Backend`."""

from dataclasses import dataclass
from typing import Any

from switchyard.engine.messages import Chunk, TokenLogprob


@dataclass(frozen=True, slots=True)
class JobBegun:
    identifier: str


@dataclass(frozen=True, slots=True)
class PromptComputed:
    """As far as `done_tokens`; of a pair, of both prompts."""

    identifier: str
    done_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class PromptScored:
    identifier: str
    is_end: bool  # nothing is to be generated


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
    chunk: Chunk  # empty, while its text is held back
    end: JobEnd | None = None


@dataclass(frozen=True, slots=True)
class JobBroken:
    """Its own failure. After one in `prefill` it stays active and must be cancelled; otherwise the
    generator lets go of it by itself.
    """

    identifier: str
    error: BaseException


Result = JobBegun | PromptComputed | PromptScored | TokenTold | JobBroken


def of_library(result: dict[str, Any] | Result) -> Result:
    """The library's own are those of jobs that start; it has put ours among them."""
    return JobBegun(result["identifier"]) if isinstance(result, dict) else result
