"""Requests of KoboldAI's and text-generation-webui's APIs. Pure."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.text.request import (
    OtherServers,
    Switch,
    TextRequest,
    called,
    without_idle,
)
from switchyard.app.request.sampling import TokenId
from switchyard.app.request.validation import Parameters, validate

# KoboldAI's numbers of samplers in the order in which they apply here, and with `temperature_last`.
_ORDER = (6, 5, 0, 2, 1, 3, 4)
_HEAT_LAST = (6, 0, 2, 1, 3, 4, 5)

_DRY = ("dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers")
_MIROSTAT = ("mirostat_tau", "mirostat_eta")
_EVERYWHERE = (
    Switch("dry_multiplier", 0, _DRY, "dry_penalty_last_n"),
    Switch("smoothing_factor", 0, ("smoothing_curve",)),
)
KOBOLD_SWITCHES = (
    *_EVERYWHERE,
    Switch("dynatemp_range", 0, ("dynatemp_exponent",)),
    Switch("mirostat", 0, _MIROSTAT),
    Switch("rep_pen", 1, ("rep_pen_range", "rep_pen_slope")),
)
TEXTGEN_SWITCHES = (
    *_EVERYWHERE,
    Switch("dynamic_temperature", 0, ("dynatemp_low", "dynatemp_high", "dynatemp_exponent")),
    Switch("guidance_scale", 1, ("negative_prompt",)),
    Switch("mirostat_mode", 0, _MIROSTAT),
    Switch("repetition_penalty", 1, ("repetition_penalty_range",)),
)

_ZERO, _ONE, _NO = (0, 0.0), (1, 1.0), (False,)
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    **TextRequest.neutral,
    "ban_eos_token": _NO,
    "banned_tokens": ([], ""),
    "logprobs": _NO,
}
_SETTLED: dict[str, tuple[Any, ...]] = {"stream": (True, False)}  # by the route


class Kobold(OtherServers):
    model_config = called("kobold")
    withheld: ClassVar[frozenset[str]] = TextRequest.withheld | {"return_progress"}
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **_NEUTRAL,
        "disable_input_formatting": (True,),
        "disable_output_formatting": (True,),
        "dynatemp_range": _ZERO,
        "frmtadsnsp": _NO,
        "frmtrmblln": _NO,
        "frmtrmspch": _NO,
        "frmttriminc": _NO,
        "grammar_retain_state": _NO,
        "images": ([],),
        "memory": ("",),
        "quiet": (True, False),  # no prompt is ever printed
        "render_special": _NO,
        "singleline": _NO,
        "soft_prompt": ("",),
        "use_authors_note": _NO,
        "use_default_badwordsids": _NO,
        "use_memory": _NO,
        "use_story": _NO,
        "use_userscripts": _NO,
        "use_world_info": _NO,
    }
    settled: ClassVar[dict[str, tuple[Any, ...]]] = {
        **_SETTLED,
        "trim_stop": (True, False),  # see `kobold`
    }

    sampler_order: list[Annotated[int, Field(ge=0, le=6)]] | None = Field(
        None,
        min_length=7,
        max_length=7,
        description="Of top-k (0), top-a (1), top-p (2), tail-free (3), typical (4), temperature"
        " (5) and repetition penalty (6). Refused unless those that are on come in the order 6, 5,"
        " 0, 2, 1, 3, 4, or with 5 at the end.",
    )
    max_context_length: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="Most tokens of prompt and completion together. A longer prompt is refused, and"
        " not cut.",
    )
    genkey: str = Field("", max_length=1000, description="By which the same client may abort it.")

    def check(self) -> None:
        super().check()
        if not (self._asks_for(_ORDER) or self._asks_for(_HEAT_LAST)):
            order = ", ".join(map(str, _ORDER))
            raise BadRequest(
                f"sampler_order: what is on must come in the order {order}, or with 5 at the end",
                "sampler_order",
            )

    def sampling(self, config: engine.ModelConfig) -> engine.Sampling:
        sampling = super().sampling(config)
        return sampling if self._asks_for(_ORDER) else replace(sampling, temperature_last=True)

    def _asks_for(self, order: Sequence[int]) -> bool:
        """Whether `sampler_order` makes no difference to it."""
        if self.sampler_order is None:
            return order is _ORDER
        is_on = (
            self.top_k > 0,
            self.top_a > 0,
            self.top_p < 1,
            self.tfs < 1,
            self.typical_p < 1,
            True,
            self.repetition_penalty not in (None, 1),
        )
        asked = [i for i in self.sampler_order if is_on[i]]
        is_whole = sorted(self.sampler_order) == list(range(7))
        return is_whole and asked == [i for i in order if is_on[i]]

    @property
    def max_context(self) -> tuple[int, str] | None:
        limit = self.max_context_length
        return None if limit is None else (limit, "max_context_length")


class KoboldStream(Kobold):
    """Of a route that always streams."""

    withheld: ClassVar[frozenset[str]] = TextRequest.withheld

    stream: bool = True


class Textgen(OtherServers):
    model_config = called("textgen")
    withheld: ClassVar[frozenset[str]] = TextRequest.withheld | {"return_progress"}
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **_NEUTRAL,
        "add_bos_token": (True,),
        "auto_max_new_tokens": _NO,
        "custom_token_bans": ("",),
        "early_stopping": _NO,
        "encoder_repetition_penalty": _ONE,
        "epsilon_cutoff": _ZERO,
        "eta_cutoff": _ZERO,
        "length_penalty": _ONE,
        "max_tokens_second": _ZERO,
        "no_repeat_ngram_size": _ZERO,
        "num_beams": (1,),
        "penalty_alpha": _ZERO,
        "preset": ("None",),
        "skip_special_tokens": (True,),
    }
    settled: ClassVar[dict[str, tuple[Any, ...]]] = {
        **_SETTLED,
        "do_sample": (True, False),  # false: greedy, see `generate`
        "dynamic_temperature": (True, False),  # the bounds say it
        "n": (1,),
    }

    truncation_length: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="Most tokens of prompt and completion together. A longer prompt is refused, and"
        " not cut.",
    )

    @property
    def max_context(self) -> tuple[int, str] | None:
        limit = self.truncation_length
        return None if limit is None else (limit, "truncation_length")


class Key(Parameters):
    genkey: str = Field("", max_length=1000, description="That of the generation to end.")


class CountTokens(Parameters):
    prompt: str = Field(description="The text.")


class EncodeText(Parameters):
    text: str = Field(description="The text.")


class DecodeTokens(Parameters):
    tokens: list[TokenId] = Field(
        fail_fast=True, description="Token ids. Refused if the vocabulary has none of that number."
    )


def kobold(body: dict[str, Any]) -> Kobold:
    """Raises BadRequest."""
    return validate(Kobold, _given(body))


def kobold_stream(body: dict[str, Any]) -> KoboldStream:
    """Raises BadRequest."""
    return validate(KoboldStream, _given(body))


def _given(body: dict[str, Any]) -> dict[str, Any]:
    given = without_idle(
        body, KOBOLD_SWITCHES, {"banned_strings": "", "grammar": "", "sampler_seed": -1}
    )
    if given.get("trim_stop") is False:
        given = {**given, "include_stop_str_in_output": True}
    return given


def textgen(body: dict[str, Any]) -> Textgen:
    """Raises BadRequest."""
    given = without_idle(
        body, TEXTGEN_SWITCHES, {"banned_strings": "", "grammar_string": "", "seed": -1}
    )
    is_bounded = {"dynatemp_low", "dynatemp_high"} <= given.keys()
    if given.get("dynamic_temperature") is True and not is_bounded:
        raise BadRequest(
            "dynamic_temperature needs dynatemp_low and dynatemp_high", "dynamic_temperature"
        )
    if given.get("do_sample") is False:
        given = {**given, "do_sample": True, "temperature": 0.0}
    return validate(Textgen, given)


def generate(body: dict[str, Any]) -> Kobold | Textgen:
    """Their requests to the same path, told apart by what they call the limit. Raises
    BadRequest.
    """
    return textgen(body) if "max_new_tokens" in body else kobold(body)
