"""Request bodies of OpenAI's completions. Pure: no Flask, no engine state."""

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator

from switchyard.app.exceptions import BadRequest
from switchyard.app.request.generation import MAX_LOGPROBS, UNLIMITED
from switchyard.app.request.infill_forms import FAMILIES
from switchyard.app.request.neutral import Table
from switchyard.app.request.sampling import TokenId
from switchyard.app.request.scored import Scored
from switchyard.app.request.validation import validate

Prompt = (
    Annotated[str, Field(min_length=1)]
    | Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
)
Prompts = Annotated[list[Prompt], Field(min_length=1, fail_fast=True)]


class Completion(Scored):
    default_max_tokens = 16  # OpenAI's default
    unset: ClassVar[Table] = {**Scored.unset, "json_schema": ({},), "suffix": ("",)}
    settled: ClassVar[Table] = {
        "dynamic_temperature": (True, False),  # the bounds of the temperature decide
        "trim_stop": (True,),  # KoboldCpp's name for what this server always does
    }
    kinds: ClassVar[dict[str, str]] = {
        **Scored.kinds,
        "prompt": "must be a string, a list of strings, token ids, or a list of lists of token"
        " ids; none may be empty",
    }

    prompt: Prompts = Field(
        description="A string, token ids, or a list of either; token ids are used unchanged."
        " Refused if a token id is outside the vocabulary, or if a prompt is longer than the"
        " context."
    )
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = Field(
        None,
        description="Maximum number of new tokens, within the context. 0 only scores the prompt,"
        f" and is refused without `echo`. {UNLIMITED} Default: 16.",
    )
    suffix: str | None = Field(
        None,
        description="The completion fills the gap between the prompt and this text, if the model"
        f" was trained for it ({FAMILIES}). Refused for other models, with `echo`, and for prompts"
        " of token ids.",
    )
    echo: bool = Field(
        False,
        description="True: the text begins with the prompt, and `logprobs` begin with the prompt's"
        " tokens.",
    )
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Number of most probable tokens whose log-probabilities are returned at each"
        " position, in addition to the token's own; see Logprobs.",
    )
    best_of: int | None = Field(
        None,
        ge=1,
        le=128,
        description="Generate this number of choices, and return the `n` whose tokens have the"
        " highest mean log-probability, best first; `usage` counts all of them. Refused if below"
        " `n`, or above `n` with `stream`. Default: `n`.",
    )

    @field_validator("prompt", mode="before", json_schema_input_type=Prompt | Prompts)
    @classmethod
    def _list_of_prompts(cls, value: Any) -> Any:
        """Converts a single prompt to a list of one prompt."""
        is_one = isinstance(value, str) or (
            isinstance(value, list) and value and type(value[0]) is int
        )
        return [value] if is_one else value

    def check(self) -> None:
        super().check()
        if self.max_tokens == 0 and not self.echo:
            more = "" if self.suffix else "; 0 only scores the prompt, and needs echo: true"
            raise BadRequest(f"max_tokens: must be at least 1{more}", "max_tokens")
        if self.suffix is not None and self.echo:
            raise BadRequest("suffix: can't be given with echo", "suffix")
        if self.suffix is not None and not all(isinstance(p, str) for p in self.prompt):
            raise BadRequest("suffix: prompts must be text, not token ids", "suffix")
        if self.best_of is not None and self.best_of < self.n:
            raise BadRequest(f"best_of: must not be less than n ({self.n})", "best_of")
        if self.stream and self.num_jobs > self.n:
            raise BadRequest(
                "best_of: can't be streamed, because the best choices are known only at the end",
                "best_of",
            )

    @property
    def asked_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_logprobs(self) -> int | None:
        return 0 if self.logprobs is None and self.num_jobs > self.n else self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        # A job without new tokens must score its prompt.
        least = 0 if self.max_tokens == 0 else None
        asked = (least, self.prompt_logprobs, self.logprobs if self.echo else None)
        return max((number for number in asked if number is not None), default=None)

    @property
    def num_jobs(self) -> int:
        return self.best_of or self.n

    @property
    def names(self) -> dict[str, str]:
        of_prompt = "best_of" if self.best_of is not None else "n"
        return {**super().names, "n": of_prompt if self.num_jobs > len(self.prompt) else "prompt"}


def completion(body: dict[str, Any]) -> Completion:
    """Parses a request from its JSON body. Raises BadRequest."""
    return validate(Completion, body)
