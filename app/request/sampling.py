"""Sampler parameters of requests. Pure.

Defaults, ranges and descriptions come from the engine's table, `engine.PARAMETERS`. A field here
declares only what differs in requests.
"""

from dataclasses import fields, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.request import neutral, written
from switchyard.app.request.names import Called
from switchyard.app.request.validation import Parameters
from switchyard.app.request.written import MAX_TOKENS

MAX_BIASED = 1024  # maximum number of token ids in one request
LISTED = "A comma-separated string is also accepted."
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenKey = Annotated[str, Field(pattern="^(0|[1-9][0-9]{0,8})$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
BannedText = Annotated[str, Field(min_length=1, max_length=200)]
Breaker = Annotated[str, Field(min_length=1, max_length=100)]

DRY_BREAKERS = ["\n", ":", '"', "*"]  # the defaults of DRY's author

# Parameters whose default is a setting. The setting's name is `default_` followed by the
# parameter's name.
_DEFAULT = "default_"
_DEFAULTED = {
    one.name.removeprefix(_DEFAULT)
    for one in fields(engine.ModelConfig)
    if one.name.removeprefix(_DEFAULT) in engine.PARAMETERS
}


def _parameter(name: str, more: str = "", **otherwise: Any) -> Any:
    """A field for the engine's parameter `name`.

    `more`: text to append to the parameter's description. `otherwise`: arguments for pydantic's
    `Field`, which override the parameter's own.
    """
    own = engine.PARAMETERS[name]
    default, texts = own.default, [own.doc, more]
    if name in _DEFAULTED:
        default = None
        texts.append(f"Default: the setting `{_DEFAULT}{name}`.")
    text = " ".join(filter(None, texts))
    return Field(**{"default": default, "description": text, **own.limits, **otherwise})


def _list_of(name: str, more: str, max_length: int) -> Any:
    return _parameter(name, more, default=[], max_length=max_length, fail_fast=True)


class Sampled(Parameters):
    kinds: ClassVar[dict[str, str]] = {
        "logit_bias": f"must map at most {MAX_BIASED} token ids, as strings, to numbers from -100"
        " to 100"
    }

    temperature: float = _parameter("temperature")
    temperature_last: bool = _parameter("temperature_last")
    dynatemp_low: Annotated[float | None, Called(others=("min_temp",))] = _parameter(
        "dynatemp_low",
        default=None,
        description="Lower limit of the dynamic temperature."
        " Refused without `dynatemp_high`, or if above `dynatemp_high`.",
    )
    dynatemp_high: Annotated[float | None, Called(others=("max_temp",))] = _parameter(
        "dynatemp_high", "Refused without `dynatemp_low`.", default=None
    )
    dynatemp_exponent: Annotated[float, Called(others=("temp_exponent",))] = _parameter(
        "dynatemp_exponent"
    )
    smoothing_factor: float = _parameter("smoothing_factor")
    smoothing_curve: float = _parameter("smoothing_curve")
    top_k: int = _parameter("top_k", "-1 or 0: off.", ge=-1)
    top_p: float = _parameter("top_p")
    top_a: float = _parameter("top_a")
    min_p: float = _parameter("min_p")
    tfs: Annotated[float, Called(llamacpp="tfs_z", ollama="tfs_z")] = _parameter("tfs")
    typical_p: Annotated[float, Called(kobold="typical")] = _parameter("typical_p")
    mirostat_mode: Annotated[
        Literal[0, 2], Called(kobold="mirostat", llamacpp="mirostat", ollama="mirostat")
    ] = Field(
        0,
        description="2: keep the surprise near `mirostat_tau`. Mirostat replaces filters such as"
        " `top_p`; the response lists those that the request sets. Version 1 is refused, as is"
        " greedy sampling with mirostat.",
    )
    mirostat_tau: float = _parameter("mirostat_tau")
    mirostat_eta: float = _parameter("mirostat_eta")
    xtc_probability: float = _parameter("xtc_probability")
    xtc_threshold: float = _parameter("xtc_threshold")
    skew: float = _parameter("skew")
    repetition_penalty: Annotated[
        float | None, Called(kobold="rep_pen", llamacpp="repeat_penalty", ollama="repeat_penalty")
    ] = _parameter("repetition_penalty")
    repetition_penalty_range: Annotated[
        int,
        Called(
            *("rep_pen_range", None, "repeat_last_n", "repeat_last_n"),
            others=("penalty_range", "repetition_range"),
        ),
    ] = _parameter(
        "repetition_range",
        "-1 or 0: all; but if `repeat_last_n` is 0, there is no penalty.",
        default=0,
    )
    repetition_decay: int = _parameter(
        "repetition_decay", "Values above 0 are refused unless that range is also above 0."
    )
    frequency_penalty: float | None = _parameter("frequency_penalty")
    presence_penalty: float = _parameter("presence_penalty")
    dry_multiplier: float = _parameter("dry_multiplier")
    dry_base: float = _parameter("dry_base")
    dry_allowed_length: int = _parameter("dry_allowed_length")
    dry_range: Annotated[
        int,
        Called(
            kobold="dry_penalty_last_n", textgen="dry_penalty_last_n", llamacpp="dry_penalty_last_n"
        ),
    ] = _parameter("dry_range", "-1 or 0: all.", ge=-1)
    dry_sequence_breakers: list[Breaker] = Field(
        default=DRY_BREAKERS,
        max_length=64,
        fail_fast=True,
        description="Texts that interrupt a repetition for DRY. Every token that contains such a"
        " text interrupts it; if no token contains the text, the text's last token does. A string"
        " that contains the list as JSON is also accepted.",
    )
    logit_bias: dict[TokenKey, Bias] = _parameter(
        "logit_bias",
        "Ids outside the vocabulary are refused.",
        default={},
        json_schema_extra={"maxProperties": MAX_BIASED, "additionalProperties": False},
    )
    banned_token_ids: Annotated[
        list[TokenId], Called(textgen="custom_token_bans", others=("banned_tokens",))
    ] = _list_of(
        "banned_token_ids", f"Ids outside the vocabulary are refused. {LISTED}", MAX_TOKENS
    )
    allowed_token_ids: Annotated[list[TokenId], Called(others=("allowed_tokens",))] = _list_of(
        "allowed_token_ids",
        f"Ids outside the vocabulary are refused. An empty list counts as unset. {LISTED}",
        MAX_TOKENS,
    )
    banned_strings: Annotated[list[BannedText], Called(others=("bad_words",))] = _list_of(
        "banned_strings", "", 64
    )
    token_healing: bool = Field(
        False,
        description="Remove the last token of the prompt, and begin the completion with a token"
        " whose text begins with the text of the removed token. Refused with `logprobs`, and if"
        " the removed token is special, isn't a whole character, or is the whole prompt.",
    )
    cfg_scale: Annotated[float, Called(textgen="guidance_scale")] = _parameter("cfg_scale")
    negative_prompt: str | None = Field(
        None,
        min_length=1,
        description="Prompt that the text is guided away from. Refused without `cfg_scale`, and if"
        " longer than the context. Ignored if `cfg_scale` is 1; the response says so. The job takes"
        " a second place in the batch, and additional pages.",
    )

    @field_validator(
        "dry_sequence_breakers", mode="before", json_schema_input_type=list[Breaker] | str
    )
    @classmethod
    def _list_of_breakers(cls, value: Any) -> Any:
        return written.strings(value)

    @field_validator(
        "banned_token_ids",
        "allowed_token_ids",
        mode="before",
        check_fields=False,
        json_schema_input_type=Annotated[list[TokenId], Field(max_length=MAX_TOKENS)]
        | Annotated[str, Field(pattern=written.TOKENS)],
    )
    @classmethod
    def _list_of_tokens(cls, value: Any) -> Any:
        return written.token_ids(value)

    @field_validator("logit_bias", mode="before", json_schema_input_type=dict[TokenKey, Bias])
    @classmethod
    def _few(cls, value: Any) -> Any:
        """Refuses a table that is too long before pydantic checks each entry."""
        if isinstance(value, dict) and len(value) > MAX_BIASED:
            raise ValueError("too many")
        return value

    @classmethod
    def translate(cls, body: dict[str, Any]) -> dict[str, Any]:
        """Handles TabbyAPI's `min_temp` and `max_temp`, and `repeat_last_n`. Only under the latter
        name does a window of 0 tokens mean no penalty, as in llama.cpp and Ollama.
        """
        body = _warmed(body)
        if type(window := body.get("repeat_last_n")) is not int or window:
            return body
        own = cls.names_of_fields()["repetition_penalty"]
        names = {"repeat_last_n", *(n for n, o in cls.other_names().items() if o == own)}
        return {**{n: value for n, value in body.items() if n not in names}, own: 1.0}

    @classmethod
    def settle(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Leaves out the zeros that clients of TabbyAPI send for DRY's other parameters while DRY
        is off.
        """
        rest = ("dry_base", "dry_allowed_length")
        zeros = [n for n in rest if neutral.asks_for_nothing(given.get(n), neutral.ZERO)]
        multiplier = given.get("dry_multiplier", 0)
        if zeros and "preset" not in given and neutral.asks_for_nothing(multiplier, neutral.ZERO):
            given = {name: value for name, value in given.items() if name not in zeros}
        return super().settle(given)

    def check(self) -> None:
        super().check()
        self.check_sampling()

    def check_sampling(self) -> None:
        """Raises BadRequest if sampling parameters contradict each other."""
        bounds = {"dynatemp_low": self.dynatemp_low, "dynatemp_high": self.dynatemp_high}
        if None in bounds.values() and set(bounds.values()) != {None}:
            given, needed = sorted(bounds, key=lambda name: bounds[name] is None)
            raise BadRequest(f"{given} needs {needed}", given)
        if (self.dynatemp_low or 0) > (self.dynatemp_high or 0):
            raise BadRequest("dynatemp_low: must not be above dynatemp_high", "dynatemp_low")
        if self.repetition_decay and self.repetition_penalty_range < 1:
            message = "repetition_decay needs a repetition_penalty_range above 0"
            raise BadRequest(message, "repetition_decay")
        if self._is_unguided and "cfg_scale" in self.model_fields_set:
            neutral.note("negative_prompt")
        elif (self.cfg_scale == 1) != (self.negative_prompt is None):
            raise BadRequest("cfg_scale and negative_prompt must be set together", "cfg_scale")
        if self.mirostat_mode:
            self._check_mirostat()

    @property
    def _is_unguided(self) -> bool:
        """Whether the negative prompt has no effect."""
        return self.negative_prompt is not None and self.cfg_scale == 1

    def _check_mirostat(self) -> None:
        """Checks the parameters that are combined with mirostat. Front ends always send filters, so
        these are ignored and listed in the response. They are refused only if the response can't
        list them.
        """
        for name in _FILTERS:
            default = engine.PARAMETERS[name].default
            off = (default, -1) if name == "top_k" else (default,)
            if name in self.model_fields_set and getattr(self, name) not in off:
                if not neutral.is_telling():
                    raise BadRequest(f"{name} can't be combined with mirostat", name)
                neutral.note(name)
        if self.temperature < 0.01 and self.dynatemp_high is None:
            raise BadRequest("temperature: must be at least 0.01 with mirostat", "temperature")

    def sampling(self, config: engine.ModelConfig) -> engine.Sampling:
        """The parameters that need no tokenizer. Defaults come from `config`."""
        said = {name: getattr(self, name) for name in _AS_IT_IS}
        for name in _DEFAULTED:
            if said[name] is None:
                said[name] = getattr(config, f"{_DEFAULT}{name}")
        if self.mirostat_mode:
            said |= {name: engine.PARAMETERS[name].default for name in _FILTERS if name in said}
        return engine.Sampling(
            **said,
            dynatemp_low=self.dynatemp_low or 0.0,
            dynatemp_high=self.dynatemp_high or 0.0,
            top_k=0 if self.mirostat_mode else max(self.top_k, 0),
            mirostat=self.mirostat_mode == 2,
            repetition_range=self.repetition_penalty_range or -1,
            dry_range=max(self.dry_range, 0),
            logit_bias=tuple((int(name), bias) for name, bias in self.logit_bias.items()),
            banned_token_ids=tuple(self.banned_token_ids),
            allowed_token_ids=tuple(self.allowed_token_ids),
        )

    def tokenized(self, job: engine.Job, tokenizer: engine.Tokenizer, limit: int) -> engine.Job:
        """`job` with the parameters that need a tokenizer, such as `banned_strings`.

        `limit`: the maximum number of tokens in the negative prompt. Raises Rejected with the
        parameter's name.
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
        if self.negative_prompt is not None and not self._is_unguided:
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


def _warmed(body: dict[str, Any]) -> dict[str, Any]:
    """Under TabbyAPI's names, each bound of the temperature is 1 by default, and equal bounds turn
    dynamic temperature off.
    """
    others = {"preset", "dynatemp_low", "dynatemp_high"}
    given = {name: body[name] for name in ("min_temp", "max_temp") if name in body}
    if not given or others & body.keys() or {type(v) for v in given.values()} - {int, float}:
        return body
    low, high = given.get("min_temp", 1.0), given.get("max_temp", 1.0)
    if low < high:
        return {**body, "min_temp": low, "max_temp": high}
    return {n: v for n, v in body.items() if n not in given} if low == high else body


# Parameters that limit the tokens to draw from. Mirostat replaces them.
_FILTERS = tuple(
    name
    for name, own in engine.PARAMETERS.items()
    if own.stage in ("filter", "filter row") and own.part_of is None
)

# The engine's parameters that are passed on unchanged. `sampling` and `tokenized` convert the
# others; `Generation.job` sets the seed, which differs for each choice.
_AS_IT_IS = engine.PARAMETERS.keys() - {
    *("dynatemp_low", "dynatemp_high", "top_k", "mirostat", "repetition_range", "dry_range"),
    *("logit_bias", "banned_token_ids", "allowed_token_ids"),
    *("dry_breakers", "banned_strings", "seed"),
}
_UNSAID = _AS_IT_IS - Sampled.model_fields.keys()
assert not _UNSAID, f"Sampled lacks {_UNSAID}"
