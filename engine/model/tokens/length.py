"""Refuses texts with too many tokens, without encoding all of a very long text."""

from collections.abc import Callable

from switchyard.engine.errors import PromptTooLong

USUAL_LENGTH = 6  # characters per token; shorter texts are encoded without a length check
CUT_TOKENS = 16  # more tokens than a cut through a text can add


def check_length(encode: Callable[[str], list[int]], text: str, max_tokens: int) -> None:
    """Raises PromptTooLong as soon as the pieces so far have too many tokens in total, so that a
    text that is far too long is refused quickly.
    """
    if len(text) <= USUAL_LENGTH * max_tokens:
        return
    size = max(max_tokens, 4096)
    num_tokens = 0
    for start in range(0, len(text), size):
        num_tokens += len(encode(text[start : start + size])) - CUT_TOKENS
        if num_tokens > max_tokens:
            raise too_long(num_tokens, max_tokens, is_whole=False)


def too_long(num_tokens: int, max_tokens: int, is_whole: bool = True) -> PromptTooLong:
    return PromptTooLong(
        f"the prompt has more than {max_tokens} tokens, too many for the model's context",
        "prompt",
        num_tokens,
        limit=max_tokens,
        is_whole=is_whole,
    )
