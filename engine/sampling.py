"""The parameters of samplers, each declared once. Plain, frozen and picklable classes.

The validation of requests, the documentation, the server's defaults and `Sampler` all derive from
the table `Sampling` (docs/development.md).
"""

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal, TypeVar

SIZE = 2**31  # bound of integer parameters

Value = TypeVar("Value")


# Stages of a draw, in the order of application. `backends/sampling/` has the code.
Stage = Literal[
    "guide",  # the logits of two prompts are combined
    "penalize",  # logits of tokens that have occurred
    "mask",  # single tokens
    "shape",  # all logits of a row; row by row
    "heat",  # the temperature
    "filter",  # which tokens remain; all rows at once
    "filter row",  # likewise, row by row
    "mirostat",  # instead of the filters; row by row
    "draw",  # the random number
]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One sampling parameter. `default` turns it off. A parameter that is `part_of` another is off
    whenever that parameter is off.
    """

    default: Any
    stage: Stage
    doc: str
    part_of: str | None
    limits: dict[str, float]  # "ge", "gt", "le", "lt"


def _parameter(
    default: Value, stage: Stage, doc: str, part_of: str | None = None, **limits: float
) -> Value:
    parameter = Parameter(default, stage, doc, part_of, limits)
    return field(default=default, metadata={"parameter": parameter})


@dataclass(frozen=True, slots=True)
class BannedString:
    """A string that must not occur, and the tokens that would complete it; see `Vocabulary.ban`."""

    data: bytes
    containing: tuple[int, ...]  # tokens that contain the whole string
    completing: tuple[tuple[int, ...], ...]  # [i]: tokens that complete it after its first i bytes


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters of one job. The defaults are those of OpenAI's API: everything off.

    The parameters are in the order of application. The functions in `backends/sampling/` name their
    sources.
    """

    cfg_scale: float = _parameter(
        1.0,
        "guide",
        "Strength of guidance away from `negative_prompt`. Refused without `negative_prompt`."
        " 1: off.",
        ge=-10,
        le=10,
    )
    repetition_penalty: float = _parameter(
        1.0,
        "penalize",
        "Divides positive logits of tokens in the prompt or completion, and multiplies negative"
        " ones.",
        ge=0.1,
        le=10,
    )
    repetition_range: int = _parameter(  # -1: all
        -1,
        "penalize",
        "Number of most recent tokens to which the repetition penalty applies.",
        part_of="repetition_penalty",
        ge=-1,
        lt=SIZE,
    )
    repetition_decay: int = _parameter(
        0,
        "penalize",
        "Number of tokens before `repetition_penalty_range` over which the penalty fades.",
        part_of="repetition_penalty",
        ge=0,
        lt=SIZE,
    )
    frequency_penalty: float = _parameter(
        0.0,
        "penalize",
        "Subtracted from a token's logit for each occurrence in the completion.",
        ge=-2,
        le=2,
    )
    presence_penalty: float = _parameter(
        0.0,
        "penalize",
        "Subtracted from a token's logit once if the token is in the completion.",
        ge=-2,
        le=2,
    )
    dry_multiplier: float = _parameter(
        0.0,
        "mask",
        "DRY: subtracts this value times `dry_base` ** (length - `dry_allowed_length`) from the"
        " logit of a token that would continue a repetition of that length. 0: off.",
        ge=0,
        le=100,
    )
    dry_base: float = _parameter(
        1.75,
        "mask",
        "Base of the DRY penalty; see `dry_multiplier`.",
        part_of="dry_multiplier",
        ge=1,
        le=8,
    )
    dry_allowed_length: int = _parameter(
        2,
        "mask",
        "Minimum length of a repetition, in tokens, that DRY penalizes.",
        part_of="dry_multiplier",
        ge=1,
        le=1000,
    )
    dry_range: int = _parameter(  # 0: all
        0,
        "mask",
        "Number of most recent tokens to which DRY applies.",
        part_of="dry_multiplier",
        ge=0,
        lt=SIZE,
    )
    dry_breakers: tuple[int, ...] = _parameter(
        (), "mask", "Tokens across which nothing counts as repeated.", part_of="dry_multiplier"
    )
    logit_bias: tuple[tuple[int, float], ...] = _parameter(
        (), "mask", "Maps token ids to numbers that are added to their logits."
    )
    banned_token_ids: tuple[int, ...] = _parameter((), "mask", "Tokens that are never drawn.")
    allowed_token_ids: tuple[int, ...] = _parameter(
        (),
        "mask",
        "The only tokens that may be drawn. The end token may be drawn only if it is listed.",
    )
    banned_strings: tuple[BannedString, ...] = _parameter(
        (),
        "mask",
        "Texts that never occur, case-sensitive: a token that would complete one is not drawn.",
    )
    smoothing_factor: float = _parameter(
        0.0,
        "shape",
        "Quadratic sampling: each logit becomes the highest logit minus this value times the"
        " square of its distance from the highest. 0: off.",
        ge=0,
        le=100,
    )
    smoothing_curve: float = _parameter(
        1.0,
        "shape",
        "Above 1: adds a cubic term to quadratic sampling.",
        part_of="smoothing_factor",
        ge=1,
        le=100,
    )
    temperature: float = _parameter(
        1.0, "heat", "Divides the logits. Below 0.01: greedy.", ge=0, le=5
    )
    dynatemp_low: float = _parameter(
        0.0,
        "shape",
        "Lowest dynamic temperature; see `dynatemp_high`.",
        part_of="dynatemp_high",
        ge=0,
        le=5,
    )
    dynatemp_high: float = _parameter(
        0.0,
        "shape",
        "Dynamic temperature: replaces `temperature` with a value that grows with the entropy, from"
        " `dynatemp_low` to `dynatemp_high`.",
        gt=0,
        le=5,
    )
    dynatemp_exponent: float = _parameter(
        1.0,
        "shape",
        "Exponent of the entropy in the dynamic temperature.",
        part_of="dynatemp_high",
        ge=0.01,
        le=10,
    )
    temperature_last: bool = _parameter(
        False, "shape", "Apply the temperature after all filters instead of before them."
    )
    top_k: int = _parameter(
        0, "filter", "Keep this many of the most probable tokens.", ge=0, le=100_000
    )
    top_p: float = _parameter(
        1.0,
        "filter",
        "Nucleus sampling: keep the most probable tokens until their probabilities sum to this"
        " value. 1: off.",
        ge=0,
        le=1,
    )
    top_a: float = _parameter(
        0.0,
        "filter row",
        "Keep tokens with probability >= `top_a` times the square of the highest probability."
        " 0: off.",
        ge=0,
        le=1,
    )
    min_p: float = _parameter(
        0.0,
        "filter",
        "Keep tokens with probability >= `min_p` times the highest probability. 0: off.",
        ge=0,
        le=1,
    )
    tfs: float = _parameter(
        1.0,
        "filter row",
        "Tail-free sampling: keep the most probable tokens until the curvature of the sorted"
        " probabilities sums to this share. 1: off.",
        ge=0,
        le=1,
    )
    typical_p: float = _parameter(
        1.0,
        "filter row",
        "Locally typical sampling: keep the tokens nearest to the expected surprise until their"
        " probabilities sum to this value. 1: off.",
        ge=0,
        le=1,
    )
    mirostat: bool = _parameter(False, "mirostat", "Keep the surprise near `mirostat_tau`.")
    mirostat_tau: float = _parameter(
        5.0, "mirostat", "Target surprise of mirostat, in bits.", part_of="mirostat", ge=0, le=20
    )
    mirostat_eta: float = _parameter(
        0.1, "mirostat", "Learning rate of mirostat.", part_of="mirostat", ge=0, le=1
    )
    xtc_probability: float = _parameter(
        0.0,
        "filter row",
        "XTC: probability of excluding the top choices, which are all tokens with probability >="
        " `xtc_threshold` except the least probable one. Not applied if this would exclude the end"
        " token or a newline.",
        ge=0,
        le=1,
    )
    xtc_threshold: float = _parameter(
        0.1,
        "filter row",
        "Minimum probability of a top choice for XTC. Above 0.5, there could be only one such"
        " choice.",
        part_of="xtc_probability",
        gt=0,
        le=0.5,
    )
    skew: float = _parameter(
        0.0,
        "filter row",
        "The random number that draws among tokens sorted by probability is raised to the power"
        " exp(-`skew`). Above 0, less probable tokens gain; below 0, they lose.",
        ge=-5,
        le=5,
    )
    seed: int | None = _parameter(None, "draw", "Seed of the random numbers.")

    # Stages with a parameter that is on. Computed here to spare the engine thread the work.
    stages: frozenset[Stage] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        asked = zip(_STAGES, _VALUES(self), _OFF, strict=True)
        stages = frozenset(stage for stage, value, off in asked if value != off)
        object.__setattr__(self, "stages", stages)


PARAMETERS: dict[str, Parameter] = {
    one.name: one.metadata["parameter"] for one in fields(Sampling) if one.init
}

_SWITCHES = {name: one for name, one in PARAMETERS.items() if one.part_of is None}
_STAGES = [one.stage for one in _SWITCHES.values()]
_OFF = [one.default for one in _SWITCHES.values()]
_VALUES = attrgetter(*_SWITCHES)
