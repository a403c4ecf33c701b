"""Parts of response bodies that wire formats share, in OpenAI's format."""

from collections.abc import Sequence
from typing import Any, Literal

import pydantic_core
from typing_extensions import TypedDict  # required by pydantic before Python 3.12

from switchyard import engine
from switchyard.app.parts.parts import Arguments, Part, Reasoning, Text, ToolCall

FinishReason = Literal["stop", "length", "cancelled"]


class PromptDetails(TypedDict):
    cached_tokens: int


class CompletionDetails(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


def usage(
    finished: Sequence[engine.Finished], num_jobs: int, reasoning_tokens: int = 0
) -> dict[str, Any]:
    """The usage of all jobs. `finished` holds `num_jobs` jobs for the first prompt, then as many
    for each further prompt.

    Each prompt is counted once.
    """
    prompt_tokens = sum(f.prompt_tokens for f in finished[::num_jobs])
    cached_tokens = sum(f.cached_tokens for f in finished[::num_jobs])
    completion_tokens = sum(f.new_tokens for f in finished)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
    }


def ending(finished: engine.Finished | None) -> dict[str, Any]:
    """The members of a choice that describe its end. `finished` is None if the choice continues."""
    if finished is None:
        return {"finish_reason": None}
    reason = {} if finished.stop_reason is None else {"stop_reason": finished.stop_reason}
    return {"finish_reason": finished.finish_reason, **reason}


def delta(part: Part) -> dict[str, Any]:
    match part:
        case Text(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case ToolCall(index, identifier, name):
            function = {"name": name, "arguments": ""}
            call = {"index": index, "id": identifier, "type": "function", "function": function}
            return {"tool_calls": [call]}
        case Arguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def object_of(text: str) -> dict[str, Any]:
    """The arguments of a call as an object, even if the token limit has cut off their text."""
    try:
        value = pydantic_core.from_json(text or "{}", allow_partial="trailing-strings")
    except ValueError:  # the text isn't JSON; a stream sends it unchanged
        return {}
    return value if isinstance(value, dict) else {}
