"""What a request can ask of a generation, whatever its wire format. Pure."""

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, Field, field_validator

import engine
from app.body import BadRequest
from app.validation import Finite, Parameters, without_nulls

Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Tokens = Annotated[int, Field(ge=1, lt=2**31)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]
StopStrings = Annotated[list[StopString], Field(max_length=16, fail_fast=True)]


class StreamOptions(BaseModel):
    model_config = Finite

    include_usage: bool | None = None
    include_obfuscation: Literal[False] | None = None


class Generation(Parameters):
    """What all requests for text have in common."""

    default_max_tokens: ClassVar[int | None] = None
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        "logit_bias": ({},),
        "logprobs": (False,),
        "metadata": ({},),
        "prediction": (),
        "response_format": ({"type": "text"},),
        "service_tier": ("auto", "default"),
        "store": (False,),
    }

    model: str | None = None
    max_tokens: Tokens | None = None
    n: int = Field(1, ge=1, le=128)
    temperature: float = Field(1.0, ge=0, le=5)
    top_p: float = Field(1.0, ge=0, le=1)
    top_k: int = Field(0, ge=-1, le=100_000)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.1, le=10)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    stop: StopStrings = Field(default=[])
    stop_token_ids: list[TokenId] = Field(default=[], max_length=64, fail_fast=True)
    min_tokens: int = Field(0, ge=0, lt=2**31)
    ignore_eos: bool = False
    stop_on_loop: bool | None = None
    seed: Seed | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: int = Field(0, ge=-(2**31), lt=2**31)
    timeout: float | None = Field(None, gt=0, le=86400)  # seconds
    user: str | None = None  # for the operator's logs

    @field_validator("stop", mode="before", json_schema_input_type=StopString | StopStrings)
    @classmethod
    def _list_of_stop_strings(cls, value: Any) -> Any:
        if not isinstance(value, str | list):
            raise ValueError("must be a string or a list of strings")
        return [value] if isinstance(value, str) else value

    @field_validator("stream_options", mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return without_nulls(value) if isinstance(value, dict) else value

    def check(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise BadRequest("stream_options needs stream: true", "stream_options")

    @property
    def asked_tokens(self) -> int | None:
        """New tokens asked for; None leaves it to the server."""
        return self.max_tokens or self.default_max_tokens

    @property
    def names(self) -> dict[str, str]:
        """What this request calls the parameters that the engine has other names for."""
        return {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def job(
        self,
        identifier: str,
        prompt: tuple[int, ...],
        max_new_tokens: int,
        choice: int,
        config: engine.ModelConfig,
        client: str,
    ) -> engine.Job:
        """The job of one choice; with a seed each choice of a prompt has its own. `config` has what
        the request doesn't say.
        """
        return engine.Job(
            identifier=identifier,
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            sampling=engine.Sampling(
                temperature=self.temperature,
                top_k=max(self.top_k, 0),
                top_p=self.top_p,
                min_p=self.min_p,
                repetition_penalty=_given(
                    self.repetition_penalty, config.default_repetition_penalty
                ),
                frequency_penalty=_given(self.frequency_penalty, config.default_frequency_penalty),
                presence_penalty=self.presence_penalty,
                seed=None if self.seed is None else self.seed + choice,
            ),
            stop_strings=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            min_new_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            stop_on_loop=_given(self.stop_on_loop, config.default_stop_on_loop),
            priority=self.priority,
            client=client,
        )


Value = TypeVar("Value", float, bool)


def _given(value: Value | None, default: Value) -> Value:
    return default if value is None else value
