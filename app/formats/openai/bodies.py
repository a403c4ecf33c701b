"""Types of the responses of OpenAI's API, for its contract."""

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard.app.delivery.progress import PromptProgress
from switchyard.app.delivery.timings import TimingsBody
from switchyard.app.formats.shapes import FinishReason, Usage


class RunningUsage(TypedDict):
    """The usage so far, within a stream."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


ChatFinishReason = Literal["stop", "length", "cancelled", "tool_calls"]


class CompletionLogprobsBody(TypedDict):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(TypedDict):
    """`rank`: 1 for the most probable token; null for tokens that rank lower than requested."""

    logprob: float
    rank: int | None
    decoded_token: str


# The logprobs of each token of the prompt, by token id.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionChoice(TypedDict):
    prompt_logprobs: NotRequired[PromptLogprobs]
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]  # in a stream, only in the choice's first frame
    index: int
    text: str
    logprobs: CompletionLogprobsBody | None
    finish_reason: FinishReason | None
    stop_reason: NotRequired[str | int]


class CompletionBody(TypedDict):
    """A whole answer, or one frame of a stream. `usage` is null in all frames except the last."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | RunningUsage | None]
    prompt_progress: NotRequired[PromptProgress]
    timings: NotRequired[TimingsBody]


class TopLogprob(TypedDict):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(TypedDict):
    content: list[ChatTokenLogprob]
    refusal: None


class FunctionCallBody(TypedDict):
    name: str
    arguments: str


class ToolCallBody(TypedDict):
    id: str
    type: Literal["function"]
    function: FunctionCallBody


class ChatMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCallBody]]


class ChatChoice(TypedDict):
    token_ids: NotRequired[list[int]]
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason
    stop_reason: NotRequired[str | int]


class ChatBody(TypedDict):
    prompt_logprobs: NotRequired[PromptLogprobs]
    prompt_token_ids: NotRequired[list[int]]
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    timings: NotRequired[TimingsBody]


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class ToolDelta(TypedDict):
    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str | None]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolDelta]]


class ChatChunkChoice(TypedDict):
    token_ids: NotRequired[list[int]]
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason | None
    stop_reason: NotRequired[str | int]


class ChatChunk(TypedDict):
    prompt_token_ids: NotRequired[list[int]]
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | RunningUsage | None]
    prompt_progress: NotRequired[PromptProgress]
    timings: NotRequired[TimingsBody]
