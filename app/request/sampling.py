"""What a request can ask of how its tokens are drawn. Pure."""

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.request.validation import Parameters

MAX_BIASED = 1024  # tokens of one request

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenKey = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,8})$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
BannedText = Annotated[str, Field(min_length=1, max_length=200)]
Breaker = Annotated[str, Field(min_length=1, max_length=100)]

DRY_BREAKERS = ["\n", ":", '"', "*"]  # the author's

# What mirostat takes the place of.
_FILTERS: dict[str, tuple[float, ...]] = {
    "top_k": (0, -1),
    "top_p": (1,),
    "top_a": (0,),
    "min_p": (0,),
    "tfs": (1,),
    "typical_p": (1,),
    "xtc_probability": (0,),
    "skew": (0,),
}


class Sampled(Parameters):
    kinds: ClassVar[dict[str, str]] = {
        "logit_bias": f"must have at most {MAX_BIASED} token ids, each a string, with numbers from"
        " -100 to 100"
    }

    temperature: float = Field(1.0, ge=0, le=5, description="Below 0.01: greedy.")
    temperature_last: bool = Field(
        False, description="Apply the temperature behind all filters, not before them."
    )
    dynatemp_low: float | None = Field(
        None, ge=0, le=5, description="Refused without `dynatemp_high`, and above it."
    )
    dynatemp_high: float | None = Field(
        None,
        gt=0,
        le=5,
        description="Dynamic temperature: between `dynatemp_low` and this, by the entropy, in place"
        " of `temperature`. Refused without `dynatemp_low`.",
    )
    dynatemp_exponent: float = Field(
        1.0, ge=0.01, le=10, description="How the dynamic temperature grows with the entropy."
    )
    smoothing_factor: float = Field(
        0.0,
        ge=0,
        le=100,
        description="Quadratic sampling: logits fall with the square of their distance from the"
        " highest, times this. 0: off.",
    )
    smoothing_curve: float = Field(
        1.0, ge=1, le=100, description="Above 1, a cubic part of quadratic sampling."
    )
    top_k: int = Field(
        0, ge=-1, le=100_000, description="Draw from the likeliest so many. -1 or 0: off."
    )
    top_p: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Draw from the smallest set of the likeliest tokens that has this probability.",
    )
    top_a: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Draw from tokens at least this times the square of the highest probability"
        " likely.",
    )
    min_p: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Draw from tokens at least this share as likely as the likeliest.",
    )
    tfs: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Tail free sampling: draw from tokens up to where the curvature of the sorted"
        " probabilities sums to this share. 1: off.",
    )
    typical_p: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Draw from the smallest set of tokens nearest to the expected surprise that"
        " has this probability. 1: off.",
    )
    mirostat_mode: Literal[0, 2] = Field(
        0,
        description="2: keep the surprise near `mirostat_tau`. Version 1 is refused, and so is"
        " mirostat with filters or greedy, whose place it takes.",
    )
    mirostat_tau: float = Field(5.0, ge=0, le=20, description="Surprise to keep to, in bits.")
    mirostat_eta: float = Field(0.1, ge=0, le=1, description="How fast mirostat learns.")
    xtc_probability: float = Field(
        0.0,
        ge=0,
        le=1,
        description="How often to exclude the top choices, all tokens at least `xtc_threshold`"
        " likely but the least of them; not where the end or a newline would go.",
    )
    xtc_threshold: float = Field(
        0.1, gt=0, le=0.5, description="What a top choice is; above 0.5 there is never a second."
    )
    skew: float = Field(
        0.0,
        ge=-5,
        le=5,
        description="Above 0 less likely tokens gain, below it they lose: the random number that"
        " draws among tokens sorted by probability is raised to exp(-skew).",
    )
    repetition_penalty: float | None = Field(
        None,
        ge=0.1,
        le=10,
        description="Divides logits of tokens of prompt and completion (multiplies negative ones)."
        " Default: the setting `default_repetition_penalty`.",
    )
    repetition_penalty_range: int = Field(
        0, ge=-1, lt=2**31, description="Of the newest tokens, so many. -1 or 0: all."
    )
    repetition_decay: int = Field(
        0,
        ge=0,
        lt=2**31,
        description="Tokens before those, over which the penalty fades. Refused above 0 unless"
        " `repetition_penalty_range` is above 0, too.",
    )
    frequency_penalty: float | None = Field(
        None,
        ge=-2,
        le=2,
        description="Taken from a token's logit for each time it is in the completion. Default:"
        " the setting `default_frequency_penalty`.",
    )
    presence_penalty: float = Field(
        0.0,
        ge=-2,
        le=2,
        description="Taken from a token's logit once if it is in the completion.",
    )
    dry_multiplier: float = Field(
        0.0,
        ge=0,
        le=100,
        description="DRY: times `dry_base` to the power of a repetition's length above"
        " `dry_allowed_length`, taken from what would go on with it. 0: off.",
    )
    dry_base: float = Field(1.75, ge=1, le=8, description="See `dry_multiplier`.")
    dry_allowed_length: int = Field(
        2, ge=1, le=1000, description="Tokens of a repetition from which on it is penalized."
    )
    dry_range: int = Field(
        0, ge=-1, lt=2**31, description="Of the newest tokens, so many. -1 or 0: all."
    )
    dry_sequence_breakers: list[Breaker] = Field(
        default=DRY_BREAKERS,
        max_length=64,
        fail_fast=True,
        description="Texts across which nothing counts as repeated: tokens that contain one; where"
        " none does, the last token of it.",
    )
    logit_bias: dict[TokenKey, Bias] = Field(
        default={},
        json_schema_extra={"maxProperties": MAX_BIASED, "additionalProperties": False},
        description="Token ids to what is added to their logits. Refused outside the vocabulary.",
    )
    banned_token_ids: list[TokenId] = Field(
        default=[],
        max_length=4096,
        fail_fast=True,
        description="Tokens that are never drawn. Refused outside the vocabulary.",
    )
    allowed_token_ids: list[TokenId] = Field(
        default=[],
        max_length=4096,
        fail_fast=True,
        description="The only tokens that may be drawn; the end only if it is one of them. Refused"
        " outside the vocabulary. An empty list counts as not given.",
    )
    banned_strings: list[BannedText] = Field(
        default=[],
        max_length=64,
        fail_fast=True,
        description="Texts that never come, case and all: what would complete one is not drawn.",
    )
    token_healing: bool = Field(
        False,
        description="Take the last token of the prompt back, and begin with one that begins as it"
        " does. Refused where that is special, no whole character, or all of the prompt, and beside"
        " `logprobs`.",
    )
    cfg_scale: float = Field(
        1.0,
        ge=-10,
        le=10,
        description="Guidance away from `negative_prompt`, without which it is refused. 1: off.",
    )
    negative_prompt: str | None = Field(
        None,
        min_length=1,
        description="What to be guided away from. Refused without `cfg_scale`, and if longer than"
        " the context. Takes a second place and as many pages.",
    )

    @field_validator("logit_bias", mode="before", json_schema_input_type=dict[TokenKey, Bias])
    @classmethod
    def _few(cls, value: Any) -> Any:
        """Before each of very many is looked at."""
        if isinstance(value, dict) and len(value) > MAX_BIASED:
            raise ValueError("too many")
        return value

    def check(self) -> None:
        super().check()
        if (self.dynatemp_low is None) != (self.dynatemp_high is None):
            raise BadRequest("dynatemp_low and dynatemp_high need each other", "dynatemp_low")
        if (self.dynatemp_low or 0) > (self.dynatemp_high or 0):
            raise BadRequest("dynatemp_low: must not be above dynatemp_high", "dynatemp_low")
        if self.repetition_decay and self.repetition_penalty_range < 1:
            message = "repetition_decay needs a repetition_penalty_range above 0"
            raise BadRequest(message, "repetition_decay")
        if (self.cfg_scale == 1) != (self.negative_prompt is None):
            raise BadRequest("cfg_scale and negative_prompt need each other", "cfg_scale")
        if self.mirostat_mode:
            for name, off in _FILTERS.items():
                if getattr(self, name) not in off:
                    raise BadRequest(f"{name}: mirostat takes the place of it", name)
            if self.temperature < 0.01 and self.dynatemp_high is None:
                raise BadRequest("temperature: mirostat can't be greedy", "temperature")

    def sampling(self, config: engine.ModelConfig) -> engine.Sampling:
        """What needs no tokenizer. `config` has what the request doesn't say."""
        repetition, frequency = self.repetition_penalty, self.frequency_penalty
        return engine.Sampling(
            cfg_scale=self.cfg_scale,
            repetition_penalty=config.default_repetition_penalty
            if repetition is None
            else repetition,
            repetition_range=self.repetition_penalty_range or -1,
            repetition_decay=self.repetition_decay,
            frequency_penalty=config.default_frequency_penalty if frequency is None else frequency,
            presence_penalty=self.presence_penalty,
            dry_multiplier=self.dry_multiplier,
            dry_base=self.dry_base,
            dry_allowed_length=self.dry_allowed_length,
            dry_range=max(self.dry_range, 0),
            logit_bias=tuple((int(name), bias) for name, bias in self.logit_bias.items()),
            banned_token_ids=tuple(self.banned_token_ids),
            allowed_token_ids=tuple(self.allowed_token_ids),
            smoothing_factor=self.smoothing_factor,
            smoothing_curve=self.smoothing_curve,
            temperature=self.temperature,
            dynatemp_low=self.dynatemp_low or 0.0,
            dynatemp_high=self.dynatemp_high or 0.0,
            dynatemp_exponent=self.dynatemp_exponent,
            temperature_last=self.temperature_last,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            top_a=self.top_a,
            min_p=self.min_p,
            tfs=self.tfs,
            typical_p=self.typical_p,
            mirostat=self.mirostat_mode == 2,
            mirostat_tau=self.mirostat_tau,
            mirostat_eta=self.mirostat_eta,
            xtc_probability=self.xtc_probability,
            xtc_threshold=self.xtc_threshold,
            skew=self.skew,
        )

    def tokenized(self, job: engine.Job, tokenizer: engine.Tokenizer, limit: int) -> engine.Job:
        """`job`, with what takes a tokenizer to tell. `limit`: most tokens of a prompt. Raises
        Rejected.
        """
        more: dict[str, Any] = {}
        if self.dry_multiplier:
            try:
                more["dry_breakers"] = tokenizer.breakers(tuple(self.dry_sequence_breakers))
            except engine.Rejected as error:
                error.param = "dry_sequence_breakers"
                raise
        if self.banned_strings:
            more["banned_strings"] = tuple(map(tokenizer.vocabulary.ban, self.banned_strings))
        if more:
            job = replace(job, sampling=replace(job.sampling, **more))
        if self.negative_prompt is not None:
            try:
                negative_prompt = tokenizer.encode(self.negative_prompt, limit)
            except engine.Rejected as error:
                error.param = "negative_prompt"
                raise
            job = replace(job, negative_prompt=negative_prompt)
        if self.token_healing:
            prompt, healing = tokenizer.heal(job.prompt)
            job = replace(job, prompt=prompt, healing=healing)
        return job
