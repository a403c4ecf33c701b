"""What may be asked of a draw: each parameter of samplers, declared once. Plain, frozen, picklable.

`Sampling` is the table: validation of requests, their documentation, the server's defaults and what
a `Sampler` looks at derive from it (docs/development.md).
"""

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal, TypeVar

SIZE = 2**31  # integers stay below

Value = TypeVar("Value")


# Of a draw, in the order of application. `backends/sampling/` has the code.
Stage = Literal[
    "guide",  # logits of two prompts become those of one
    "penalize",  # tokens that have come
    "mask",  # single tokens
    "shape",  # all logits of a row; row by row
    "heat",  # by the temperature
    "filter",  # which tokens are left; all rows at once
    "filter row",  # likewise, row by row
    "mirostat",  # in place of those filters; row by row
    "draw",  # the random number
]


@dataclass(frozen=True, slots=True)
class Parameter:
    """`default` asks for nothing, and so does what is `part_of` another that is at its own."""

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
    """Which tokens may not follow which text; see `Vocabulary.ban`."""

    data: bytes
    containing: tuple[int, ...]  # tokens that have all of it in them
    completing: tuple[tuple[int, ...], ...]  # [i]: that complete it behind its first i bytes


@dataclass(frozen=True, slots=True)
class Sampling:
    """What one job asks for. The defaults are those of OpenAI's API: everything off.

    In the order of application. Sources stand at the functions in `backends/sampling/`.
    """

    cfg_scale: float = _parameter(
        1.0,
        "guide",
        "Guidance away from `negative_prompt`, without which it is refused. 1: off.",
        ge=-10,
        le=10,
    )
    repetition_penalty: float = _parameter(
        1.0,
        "penalize",
        "Divides logits of tokens of prompt and completion (multiplies negative ones).",
        ge=0.1,
        le=10,
    )
    repetition_range: int = _parameter(  # -1: all
        -1,
        "penalize",
        "Of the newest tokens, so many.",
        part_of="repetition_penalty",
        ge=-1,
        lt=SIZE,
    )
    repetition_decay: int = _parameter(
        0,
        "penalize",
        "Tokens before those, over which the penalty fades.",
        part_of="repetition_penalty",
        ge=0,
        lt=SIZE,
    )
    frequency_penalty: float = _parameter(
        0.0,
        "penalize",
        "Taken from a token's logit for each time it is in the completion.",
        ge=-2,
        le=2,
    )
    presence_penalty: float = _parameter(
        0.0,
        "penalize",
        "Taken from a token's logit once if it is in the completion.",
        ge=-2,
        le=2,
    )
    dry_multiplier: float = _parameter(
        0.0,
        "mask",
        "DRY: times `dry_base` to the power of a repetition's length above `dry_allowed_length`,"
        " taken from what would go on with it. 0: off.",
        ge=0,
        le=100,
    )
    dry_base: float = _parameter(
        1.75, "mask", "See `dry_multiplier`.", part_of="dry_multiplier", ge=1, le=8
    )
    dry_allowed_length: int = _parameter(
        2,
        "mask",
        "Tokens of a repetition from which on it is penalized.",
        part_of="dry_multiplier",
        ge=1,
        le=1000,
    )
    dry_range: int = _parameter(  # 0: all
        0, "mask", "Of the newest tokens, so many.", part_of="dry_multiplier", ge=0, lt=SIZE
    )
    dry_breakers: tuple[int, ...] = _parameter(
        (), "mask", "Tokens across which nothing counts as repeated.", part_of="dry_multiplier"
    )
    logit_bias: tuple[tuple[int, float], ...] = _parameter(
        (), "mask", "Token ids to what is added to their logits."
    )
    banned_token_ids: tuple[int, ...] = _parameter((), "mask", "Tokens that are never drawn.")
    allowed_token_ids: tuple[int, ...] = _parameter(
        (), "mask", "The only tokens that may be drawn; the end only if it is one of them."
    )
    banned_strings: tuple[BannedString, ...] = _parameter(
        (),
        "mask",
        "Texts that never come, case and all: what would complete one is not drawn.",
    )
    smoothing_factor: float = _parameter(
        0.0,
        "shape",
        "Quadratic sampling: logits fall with the square of their distance from the highest, times"
        " this. 0: off.",
        ge=0,
        le=100,
    )
    smoothing_curve: float = _parameter(
        1.0,
        "shape",
        "Above 1, a cubic part of quadratic sampling.",
        part_of="smoothing_factor",
        ge=1,
        le=100,
    )
    temperature: float = _parameter(1.0, "heat", "Below 0.01: greedy.", ge=0, le=5)
    dynatemp_low: float = _parameter(
        0.0, "shape", "See `dynatemp_high`.", part_of="dynatemp_high", ge=0, le=5
    )
    dynatemp_high: float = _parameter(
        0.0,
        "shape",
        "Dynamic temperature: between `dynatemp_low` and this, by the entropy, in place of"
        " `temperature`.",
        gt=0,
        le=5,
    )
    dynatemp_exponent: float = _parameter(
        1.0,
        "shape",
        "How the dynamic temperature grows with the entropy.",
        part_of="dynatemp_high",
        ge=0.01,
        le=10,
    )
    temperature_last: bool = _parameter(
        False, "shape", "Apply the temperature behind all filters, not before them."
    )
    top_k: int = _parameter(0, "filter", "Draw from the likeliest so many.", ge=0, le=100_000)
    top_p: float = _parameter(
        1.0,
        "filter",
        "Draw from the smallest set of the likeliest tokens that has this probability.",
        ge=0,
        le=1,
    )
    top_a: float = _parameter(
        0.0,
        "filter row",
        "Draw from tokens at least this times the square of the highest probability likely.",
        ge=0,
        le=1,
    )
    min_p: float = _parameter(
        0.0,
        "filter",
        "Draw from tokens at least this share as likely as the likeliest.",
        ge=0,
        le=1,
    )
    tfs: float = _parameter(
        1.0,
        "filter row",
        "Tail free sampling: draw from tokens up to where the curvature of the sorted"
        " probabilities sums to this share. 1: off.",
        ge=0,
        le=1,
    )
    typical_p: float = _parameter(
        1.0,
        "filter row",
        "Draw from the smallest set of tokens nearest to the expected surprise that has this"
        " probability. 1: off.",
        ge=0,
        le=1,
    )
    mirostat: bool = _parameter(False, "mirostat", "Keep the surprise near `mirostat_tau`.")
    mirostat_tau: float = _parameter(
        5.0, "mirostat", "Surprise to keep to, in bits.", part_of="mirostat", ge=0, le=20
    )
    mirostat_eta: float = _parameter(
        0.1, "mirostat", "How fast mirostat learns.", part_of="mirostat", ge=0, le=1
    )
    xtc_probability: float = _parameter(
        0.0,
        "filter row",
        "How often to exclude the top choices, all tokens at least `xtc_threshold` likely but the"
        " least of them; not where the end or a newline would go.",
        ge=0,
        le=1,
    )
    xtc_threshold: float = _parameter(
        0.1,
        "filter row",
        "What a top choice is; above 0.5 there is never a second.",
        part_of="xtc_probability",
        gt=0,
        le=0.5,
    )
    skew: float = _parameter(
        0.0,
        "filter row",
        "Above 0 less likely tokens gain, below it they lose: the random number that draws among"
        " tokens sorted by probability is raised to exp(-skew).",
        ge=-5,
        le=5,
    )
    seed: int | None = _parameter(None, "draw", "What the random numbers follow from.")

    # Those in which something is asked for. Told here, so that the engine thread needn't look.
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
