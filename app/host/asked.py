"""Converts arguments of `generate` and `stream` to the body of a request. Pure."""

from typing import Any

from switchyard.app.exceptions import BadRequest

# Parameters that add something other than text to an answer.
MEANINGLESS = (
    "stream",
    "stream_options",
    "n",
    "best_of",
    "echo",
    "timings",
    "timings_per_token",
    "return_progress",
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "return_token_ids",
    "tools",
)


def asked(
    prompt: str | None, messages: list[dict[str, Any]] | None, parameters: dict[str, Any]
) -> dict[str, Any]:
    """The body of an equivalent request. Raises BadRequest."""
    if (prompt is None) == (messages is None):
        raise BadRequest("give either prompt or messages", "prompt")
    if messages is None and not isinstance(prompt, str):
        raise BadRequest("prompt: must be a string", "prompt")
    for name in MEANINGLESS:
        if name in parameters:
            raise BadRequest(
                f"{name} is not supported by generate, stream and count",
                name,
                "unsupported_parameter",
            )
    # The usual error names `echo`, which is not available here.
    if parameters.get("max_tokens") == 0:
        raise BadRequest("max_tokens: must be at least 1", "max_tokens")
    what = {"prompt": prompt} if messages is None else {"messages": messages}
    return {**what, **parameters}
