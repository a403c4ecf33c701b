"""Requests of llama.cpp's /completion. Pure."""

from typing import Any, ClassVar

from pydantic import Field

from switchyard.app.formats.text.request import (
    WINDOW,
    OtherServers,
    Switch,
    TextRequest,
    called,
    without_idle,
)
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
# Values that leave it to the server.
UNSET: dict[str, Any] = {"grammar": "", "logit_bias": [], "n_predict": -1, "seed": -1}

_ZERO, _ONE, _NO = (0, 0.0), (1, 1.0), (False,)


class LlamaCpp(OtherServers):
    model_config = called("llamacpp")
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **TextRequest.neutral,
        "cache_prompt": (True,),
        "dynatemp_range": _ZERO,
        "id_slot": (-1,),
        "image_data": ([],),
        "lora": ([],),
        "min_keep": (0,),
        "n_indent": (0,),
        "n_keep": (0,),
        "n_probs": (0,),
        "post_sampling_probs": _NO,
        "return_tokens": _NO,
        "t_max_predict_ms": (0,),
        "timings_per_token": _NO,
    }
    settled: ClassVar[dict[str, tuple[Any, ...]]] = {"n": (1,)}

    repetition_penalty_range: int = Field(-1, ge=-1, lt=2**31, description=WINDOW)


def completion(body: dict[str, Any]) -> LlamaCpp:
    """Raises BadRequest."""
    return validate(LlamaCpp, without_idle(body, SWITCHES, UNSET))
