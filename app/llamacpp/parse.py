"""Requests of llama.cpp's /completion. Pure."""

from typing import Any, ClassVar

from pydantic import Field

from app.text.request import Switch, Text, called, without_idle
from app.validation import validate

# What it calls fields of ours that have other names there.
NAMES = {
    "dry_range": "dry_penalty_last_n",
    "max_tokens": "n_predict",
    "mirostat_mode": "mirostat",
    "repetition_penalty": "repeat_penalty",
    "repetition_penalty_range": "repeat_last_n",
    "tfs": "tfs_z",
}

SWITCHES = (
    Switch(
        "dry_multiplier",
        0,
        ("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers"),
    ),
    Switch("dynatemp_range", 0, ("dynatemp_exponent",)),
    Switch("mirostat", 0, ("mirostat_tau", "mirostat_eta")),
    Switch("repeat_penalty", 1, ("repeat_last_n", "penalize_nl")),
)
# Values that leave it to the server.
UNSET: dict[str, Any] = {"grammar": "", "logit_bias": [], "n_predict": -1, "seed": -1}

_ZERO, _ONE, _NO = (0, 0.0), (1, 1.0), (False,)


class LlamaCpp(Text):
    model_config = called(NAMES)
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **Text.neutral,
        "cache_prompt": (True,),
        "dynatemp_range": _ZERO,
        "id_slot": (-1,),
        "image_data": ([],),
        "lora": ([],),
        "min_keep": (0,),
        "n": (1,),
        "n_indent": (0,),
        "n_keep": (0,),
        "n_probs": (0,),
        "post_sampling_probs": _NO,
        "return_tokens": _NO,
        "t_max_predict_ms": (0,),
        "timings_per_token": _NO,
    }

    parse_special: bool = Field(
        True,
        description="As of `/generate`; here the clients write the model's template themselves.",
    )


def completion(body: dict[str, Any]) -> LlamaCpp:
    """Raises BadRequest."""
    return validate(LlamaCpp, without_idle(body, SWITCHES, UNSET))
