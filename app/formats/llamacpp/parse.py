"""Requests of llama.cpp's /completion. Pure."""

from typing import Annotated, Any, ClassVar

from pydantic import Field

from switchyard.app.formats.text.request import (
    WINDOW,
    OtherServers,
    Switch,
    called,
)
from switchyard.app.request.generation import UNLIMITED
from switchyard.app.request.neutral import OFF, Table
from switchyard.app.request.validation import validate

SWITCHES = (
    Switch(
        "dry_multiplier",
        0,
        ("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
        "dry_penalty_last_n",
    ),
    Switch("dynatemp_range", 0, ("dynatemp_exponent",)),
    Switch("mirostat", 0, ("mirostat_tau", "mirostat_eta")),
    Switch("repeat_penalty", 1, ("repeat_last_n", "penalize_nl"), "repeat_last_n"),
)


class LlamaCpp(OtherServers):
    model_config = called("llamacpp")
    neutral: ClassVar[Table] = {
        **OtherServers.neutral,
        "image_data": ([],),
        "lora": ([],),
        "min_keep": (0,),
        "n_indent": (0,),
        "n_keep": (0,),
        "n_probs": (0,),
        "post_sampling_probs": OFF,
        "return_tokens": OFF,
        "t_max_predict_ms": (0,),
    }
    settled: ClassVar[Table] = {"n": (1,)}
    switches: ClassVar[tuple[Switch, ...]] = SWITCHES

    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None,
        description="Most new tokens, and as many as fit the context. 0: the prompt is read, and"
        f" nothing more. {UNLIMITED}",
    )
    repetition_penalty_range: int = Field(-1, ge=-1, lt=2**31, description=WINDOW)

    @property
    def prompt_logprobs(self) -> int | None:
        return 0 if self.max_tokens == 0 else None  # a job without any new token is one that scores


def completion(body: dict[str, Any]) -> LlamaCpp:
    """Raises BadRequest."""
    return validate(LlamaCpp, body)
