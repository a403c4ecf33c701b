"""Tokenized prompts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from switchyard import engine


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt, and the tokens that end its generation in addition to the model's own end
    tokens.
    """

    token_ids: tuple[int, ...]
    ends: tuple[int, ...] = ()


def limited(token_ids: Sequence[int], max_tokens: int) -> tuple[int, ...]:
    """The prompt as a tuple. Raises PromptTooLong if the prompt has more than `max_tokens`
    tokens.
    """
    if len(token_ids) > max_tokens:
        raise engine.PromptTooLong(
            f"the prompt has {len(token_ids)} tokens, but the context holds only {max_tokens}",
            "prompt",
            len(token_ids),
            limit=max_tokens,
        )
    return tuple(token_ids)


def ended_by(job: engine.Job, ends: tuple[int, ...]) -> engine.Job:
    """The job with `ends` as additional stop tokens."""
    return replace(job, stop_token_ids=(*job.stop_token_ids, *ends)) if ends else job
