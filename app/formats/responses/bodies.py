"""Types of the responses of OpenAI's Responses API, for its contract."""

from typing import Any, Literal

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # required by pydantic before Python 3.12


class InputDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Asked(TypedDict):
    """The members of a response that repeat parameters of the request."""

    background: Literal[False]
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"]
    user: str | None


class ResponseBody(Asked):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
    error: dict[str, str] | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[dict[str, Any]]  # items of type message, reasoning or function_call
    usage: ResponseUsage | None


class DeletedBody(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


@with_config(ConfigDict(extra="allow"))
class ResponseEvent(TypedDict):
    """An event in a stream. Its other members depend on its type."""

    type: str
    sequence_number: int
