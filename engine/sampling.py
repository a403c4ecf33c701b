"""How the next token is drawn: plain, frozen, picklable."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BannedString:
    """Which tokens may not follow which text; see `Vocabulary.ban`."""

    data: bytes
    containing: tuple[int, ...]  # tokens that have all of it in them
    completing: tuple[tuple[int, ...], ...]  # [i]: that complete it behind its first i bytes


@dataclass(frozen=True, slots=True)
class Sampling:
    """The defaults are those of OpenAI's API: everything off. In the order of their application.

    Sources stand at the functions in `backends/penalties.py` and `backends/filters.py`.
    """

    cfg_scale: float = 1.0  # of the job's negative prompt
    repetition_penalty: float = 1.0
    repetition_range: int = -1  # newest tokens of prompt and completion; -1: all
    repetition_decay: int = 0  # tokens before those, over which the penalty fades
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0  # 0: off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_range: int = 0  # newest tokens of prompt and completion; 0: all
    dry_breakers: tuple[int, ...] = ()  # token ids
    logit_bias: tuple[tuple[int, float], ...] = ()  # token id, added to its logit
    banned_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()  # none: all
    banned_strings: tuple[BannedString, ...] = ()
    smoothing_factor: float = 0.0  # 0: off
    smoothing_curve: float = 1.0
    temperature: float = 1.0  # below 0.01: greedy
    dynatemp_low: float = 0.0
    dynatemp_high: float = 0.0  # above 0: between the two, in place of `temperature`
    dynatemp_exponent: float = 1.0
    temperature_last: bool = False  # behind all filters
    top_k: int = 0  # 0: off
    top_p: float = 1.0  # 1: off
    top_a: float = 0.0
    min_p: float = 0.0
    tfs: float = 1.0  # 1: off
    typical_p: float = 1.0  # 1: off
    mirostat: bool = False  # version 2
    mirostat_tau: float = 5.0  # bits
    mirostat_eta: float = 0.1
    xtc_probability: float = 0.0  # 0: off
    xtc_threshold: float = 0.1
    skew: float = 0.0
    seed: int | None = None
