"""Types of the bodies of llama.cpp's /completion. Pure."""

from typing import Any, Literal, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard.app.delivery.progress import PromptProgress
from switchyard.app.delivery.timings import TimingsBody


class TokenBody(TypedDict):
    id: int
    token: str
    bytes: list[int]
    logprob: float


class ProbabilitiesBody(TokenBody):
    top_logprobs: list[TokenBody]


class LlamaCppChunk(TypedDict):
    index: int
    content: str
    tokens: list[int]
    stop: Literal[False]
    completion_probabilities: NotRequired[list[ProbabilitiesBody]]
    prompt_progress: NotRequired[PromptProgress]


@with_config(ConfigDict(extra="allow"))
class LlamaCppBody(TypedDict, total=False):
    """A whole answer, and the last event of a stream. `response_fields` can leave out any member,
    and can add nested members with names such as `a/b`.
    """

    index: int
    content: str
    tokens: list[int]
    stop: Literal[True]
    model: str
    prompt: str
    generation_settings: dict[str, Any]
    has_new_line: bool
    stop_type: Literal["eos", "limit", "word", "none"]
    stopping_word: str
    tokens_predicted: int
    tokens_evaluated: int
    tokens_cached: int
    truncated: bool
    completion_probabilities: list[ProbabilitiesBody]
    timings: TimingsBody
