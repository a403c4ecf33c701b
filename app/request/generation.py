"""Parameters of a generation that all wire formats share. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Self

from pydantic import Field, field_validator

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.request import neutral
from switchyard.app.request.constraint import Constrained
from switchyard.app.request.names import Called
from switchyard.app.request.neutral import (
    FORMATS,
    FRONT_ENDS,
    LOADING,
    NO_TEXT,
    OPENAI,
    RUNNING,
    SCORES,
    SERVERS,
    Table,
)
from switchyard.app.request.sampling import Sampled, TokenId
from switchyard.app.request.stream_options import StreamOptions
from switchyard.app.request.validation import MAX_SHOWN, without_nulls

MAX_LOGPROBS = 20  # maximum number of alternatives shown for each token: OpenAI's limit

Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Tokens = Annotated[int, Field(ge=1, lt=2**31)]
StopString = Annotated[str, Field(min_length=1, max_length=1000)]
StopStrings = Annotated[list[StopString], Field(max_length=16, fail_fast=True)]

UNLIMITED = "-1: the default."

ModelName = Annotated[
    str | None,
    Field(description="Default: the server's model. A name that isn't served gets a 404."),
]


class Generation(Constrained, Sampled):
    """The parameters that all requests for text share."""

    default_max_tokens: ClassVar[int | None] = None  # if set, replaces the setting of that name
    usual_max_tokens: ClassVar[int | None] = None  # the default without that setting
    neutral: ClassVar[Table] = {
        **{**OPENAI, **SERVERS, **SCORES, **RUNNING, **FRONT_ENDS, **LOADING, **FORMATS}
    }
    unset: ClassVar[Table] = {"max_tokens": (-1,), "seed": (-1,), **NO_TEXT}

    model: ModelName = None
    max_tokens: Annotated[
        Tokens | None,
        Called(
            *("max_length", "max_new_tokens", "n_predict", "num_predict"),
            others=("max_completion_tokens",),
        ),
    ] = Field(
        None,
        description=f"Maximum number of new tokens, within the context. {UNLIMITED} Default: the"
        " setting `default_max_tokens`.",
    )
    n: int = Field(
        1,
        ge=1,
        le=128,
        description="Number of choices for each prompt, with one job each. Refused if there"
        " would be more jobs than the server can ever hold.",
    )
    stop: Annotated[
        StopStrings,
        Called(kobold="stop_sequence", textgen="stopping_strings", others=("stop_sequences",)),
    ] = Field(
        default=[],
        description="The text ends before the first occurrence of any of these strings, which may"
        " begin or end inside a token.",
    )
    stop_token_ids: list[TokenId] = Field(
        default=[],
        max_length=64,
        fail_fast=True,
        description="Tokens that end the completion, in addition to the model's own. Ids outside"
        " the vocabulary are refused.",
    )
    min_tokens: Annotated[int, Called(textgen="min_length")] = Field(
        0,
        ge=0,
        lt=2**31,
        description="Minimum number of new tokens. Stop tokens have no effect earlier, nor do stop"
        " strings that end before the last of these tokens. Refused if above the maximum.",
    )
    ignore_eos: Annotated[bool, Called("bypass_eos", others=("ban_eos_token",))] = Field(
        False, description="Continue after the model's own end tokens."
    )
    include_stop_str_in_output: bool = Field(
        False, description="The text includes the string of `stop` that ended it."
    )
    stop_on_loop: bool | None = Field(
        None,
        description="Stop when the last tokens, at least 32, repeat a sequence of at most 64"
        " tokens at least four times. Tables and dashed lines may match too. Default: the setting"
        " `default_stop_on_loop` or, if that is unset, true if the number of new tokens has no"
        " limit.",
    )
    seed: Annotated[Seed | None, Called(kobold="sampler_seed")] = Field(
        None,
        description="The same seed, prompt and parameters give the same text, except for small"
        " rounding differences due to batch and cache. Choice k of n uses seed + k. -1: none.",
    )
    stream: bool = Field(False, description="Send the text as it is generated; see Streaming.")
    stream_options: StreamOptions | None = Field(
        None,
        description="How to stream. Ignored without `stream`; the response says so.",
    )
    return_progress: bool = Field(
        False,
        description="The stream shows how many tokens of the prompt have been processed; see"
        " Progress. Refused without `stream`, and for bare text.",
    )
    timings: bool = Field(
        False,
        description="The answer contains the time that each stage took; see Timings. Refused for"
        " streams of bare text.",
    )
    timings_per_token: bool = Field(
        False,
        description="Each body with new tokens includes the timings of its choice so far; the last"
        " body includes those of the whole answer. Ignored without `stream`; the response says so."
        " Refused for bare text.",
    )
    preset: str | None = Field(
        None,
        description="Name of a preset in the server's configuration. Its sampling parameters are"
        " this request's defaults. Refused if there is no such preset.",
    )
    priority: int = Field(
        0,
        ge=-(2**31),
        lt=2**31,
        description="Waiting jobs with a higher priority start first (vLLM does the opposite),"
        " but lower priorities also get a share of the work. Refused above the"
        " setting `max_priority`.",
    )
    timeout: float | None = Field(
        None,
        gt=0,
        le=86400,
        description="Seconds that the request may take in total. Refused above the setting"
        " `total_timeout`, which is the default.",
    )
    user: str | None = Field(
        None, description="The end user; written to the server's log at level DEBUG."
    )

    # Uses `check_fields` because formats with other names for these fields leave them out.
    @field_validator(
        "stop",
        "stop_sequences",
        mode="before",
        check_fields=False,
        json_schema_input_type=StopString | StopStrings,
    )
    @classmethod
    def _list_of_stop_strings(cls, value: Any) -> Any:
        if not isinstance(value, str | list):
            raise ValueError("must be a string or a list of strings")
        return [value] if isinstance(value, str) else value

    @field_validator("stream_options", mode="before", check_fields=False)
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        return without_nulls(value) if isinstance(value, dict) else value

    def check(self) -> None:
        super().check()
        if self.stream_options is not None and not self.stream:
            neutral.note("stream_options")
        if self.timings_per_token and not self.stream:
            neutral.note("timings_per_token")
        if self.return_progress and not self.stream:
            raise BadRequest("return_progress needs stream: true", "return_progress")

    def check_sampling(self) -> None:
        # With a preset, `with_preset` checks, because the preset may have the missing parameters.
        if self.preset is None:
            super().check_sampling()

    def with_preset(self, presets: Mapping[str, Mapping[str, Any]]) -> Self:
        """The request with the parameters of its preset. The request's own parameters take
        precedence.

        Raises BadRequest if there is no such preset, or if the preset's parameters conflict with
        the others.
        """
        if self.preset is None:
            return self
        if self.preset not in presets:
            raise BadRequest(
                f"preset: there is no preset called {self.preset[:MAX_SHOWN]}", "preset"
            )
        preset = presets[self.preset].items()
        added = {name: value for name, value in preset if name not in self.model_fields_set}
        request = self.model_copy(update={**added, "preset": None})
        with self.as_said():
            request.check()
        return request

    @property
    def asked_tokens(self) -> int | None:
        """The request's limit on new tokens; None leaves the limit to the server."""
        return self.default_max_tokens if self.max_tokens is None else self.max_tokens

    @property
    def asked_logprobs(self) -> int | None:
        """The number of alternatives to show for each token; None means no logprobs in the
        answer.
        """
        return None

    @property
    def num_logprobs(self) -> int | None:
        """The number of alternatives that the engine computes for each token; None means no
        logprobs.
        """
        return self.asked_logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The number of alternatives for each token in the prompt; None means no logprobs for the
        prompt.
        """
        return None

    @property
    def num_jobs(self) -> int:
        """The number of jobs for each prompt."""
        return self.n

    @property
    def names(self) -> dict[str, str]:
        """The request's names for parameters, keyed by the engine's names, where they differ."""
        return {
            "max_new_tokens": "max_tokens",
            "min_new_tokens": "min_tokens",
            "constraint": self.name_of_constraint,
            "healing": "token_healing",
        }

    @property
    def asked_priority(self) -> int | None:
        """The priority that the request sets, or None."""
        return self.priority if "priority" in self.model_fields_set else None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        options = self.stream_options
        return self.include_usage and options is not None and bool(options.continuous_usage_stats)

    @property
    def max_context(self) -> tuple[int, str] | None:
        """The request's own limit on prompt and new tokens together, and the parameter that sets
        the limit.
        """
        return None

    def job(
        self,
        identifier: str,
        prompt: tuple[int, ...],
        max_new_tokens: int,
        choice: int,
        config: engine.ModelConfig,
        client: str,
        owner: str,
        request_id: str,
    ) -> engine.Job:
        """The job of one choice. With a seed, choice k uses seed + k. Defaults come from
        `config`.
        """
        return engine.Job(
            identifier=identifier,
            prompt=prompt,
            max_new_tokens=max_new_tokens,
            sampling=replace(
                self.sampling(config), seed=None if self.seed is None else self.seed + choice
            ),
            stop_strings=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            min_new_tokens=self.min_tokens,
            ignore_eos=self.ignore_eos,
            include_stop=self.include_stop_str_in_output,
            num_logprobs=self.num_logprobs,
            prompt_logprobs=self.num_prompt_logprobs,
            stop_on_loop=self._stops_on_loop(config),
            constraint=self.constraint,
            priority=self.priority,
            client=client,
            owner=owner,
            request_id=request_id,
        )

    def _stops_on_loop(self, config: engine.ModelConfig) -> bool:
        for choice in (self.stop_on_loop, config.default_stop_on_loop):
            if choice is not None:
                return choice
        limits = (self.asked_tokens, config.default_max_tokens, self.usual_max_tokens)
        return all(limit is None for limit in limits)
