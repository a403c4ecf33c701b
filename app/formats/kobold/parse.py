"""Requests to KoboldAI's and text-generation-webui's APIs. Pure."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import Field

from switchyard import engine
from switchyard.app.exceptions import BadRequest
from switchyard.app.formats.text.request import (
    OneText,
    OtherServers,
    Switch,
    TextRequest,
    called,
)
from switchyard.app.request import neutral
from switchyard.app.request.neutral import OFF, ON, Table
from switchyard.app.request.sampling import TokenId
from switchyard.app.request.validation import Parameters, known_by, validate

# KoboldAI's numbers of the samplers, in this server's order without and with `temperature_last`.
_ORDER = (6, 5, 0, 2, 1, 3, 4)
_HEAT_LAST = (6, 0, 2, 1, 3, 4, 5)

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_PLACEHOLDER = re.compile(r"\{\{\[(?:INPUT|OUTPUT|SYSTEM)(?:_END)?\]\}\}")

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
    Switch("rep_pen", 1, ("rep_pen_range",), is_setting=True),
)
TEXTGEN_SWITCHES = (
    *_EVERYWHERE,
    Switch("dynamic_temperature", 0, ("dynatemp_low", "dynatemp_high", "dynatemp_exponent")),
    Switch("guidance_scale", 1, ("negative_prompt",)),
    Switch("mirostat_mode", 0, _MIROSTAT),
    Switch("repetition_penalty", 1, ("repetition_penalty_range",), is_setting=True),
)

USUAL_MAX_TOKENS = 512  # KoboldAI's clients expect a number
_SETTLED: Table = {"stream": (True, False)}  # settled by the route
_OF_STREAMS = frozenset({"return_progress", "timings_per_token"})


class Kobold(OtherServers, OneText):
    model_config = called("kobold")
    usual_max_tokens = USUAL_MAX_TOKENS
    withheld: ClassVar[frozenset[str]] = TextRequest.withheld | _OF_STREAMS
    neutral: ClassVar[Table] = {
        **OtherServers.neutral,
        "disable_input_formatting": ON,
        "disable_output_formatting": ON,
        "frmtadsnsp": OFF,
        "frmtrmblln": OFF,
        "frmtrmspch": OFF,
        "frmttriminc": OFF,
        "grammar_retain_state": OFF,
        "images": ([],),
        "memory": ("",),
        "quiet": (True, False),  # this server never prints prompts
        "reasoning_effort": (0, ""),
        "render_special": OFF,
        "replace_instruct_placeholders": (True, False),  # see `settle`
        "singleline": OFF,
        "soft_prompt": ("",),
        "use_authors_note": OFF,
        "use_memory": OFF,
        "use_story": OFF,
        "use_userscripts": OFF,
        "use_world_info": OFF,
    }
    settled: ClassVar[Table] = {
        **_SETTLED,
        "trim_stop": (True, False),  # see `settle`
        "use_default_badwordsids": (True, False),  # see `settle`
    }
    switches: ClassVar[tuple[Switch, ...]] = KOBOLD_SWITCHES

    sampler_order: list[Annotated[int, Field(ge=0, le=6)]] | None = Field(
        None,
        min_length=7,
        max_length=7,
        description="Order of top-k (0), top-a (1), top-p (2), tail-free (3), typical (4),"
        " temperature (5) and repetition penalty (6). Active samplers are applied in the order 6,"
        " 5, 0, 2, 1, 3, 4, or with 5 at the end. Any other order is ignored; the response says"
        " so.",
    )
    max_context_length: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="Maximum number of tokens in prompt and completion together. A longer prompt"
        " is refused, not cut.",
    )
    dynatemp_range: float = Field(
        0.0,
        ge=0,
        le=5,
        description="Dynamic temperature: grows with the entropy, from `temperature` minus this"
        " value to `temperature` plus this value, within 0 and 5. 0: off.",
    )
    genkey: str = Field(
        "",
        max_length=1000,
        description="A key with which the same client can abort the generation.",
    )

    @classmethod
    def settle(cls, given: dict[str, Any]) -> dict[str, Any]:
        given = super().settle(given)
        if given.get("trim_stop") is False:
            given = {**given, "include_stop_str_in_output": True}
        # The end token is the only one of KoboldAI's bad words that has an effect here. A grammar
        # needs that token.
        if given.get("use_default_badwordsids") is True and "grammar" not in given:
            given = {**given, "bypass_eos": True}
        seed = given.get("sampler_seed")
        if isinstance(seed, str) and _INTEGER.fullmatch(seed):  # forms on web pages send it as text
            given = {**given, "sampler_seed": None if seed == "-1" else int(seed)}
        if given.get("replace_instruct_placeholders") is True:
            _refuse_placeholders(given.get("prompt"))
        return given

    def check(self) -> None:
        super().check()
        if not (self._asks_for(_ORDER) or self._asks_for(_HEAT_LAST)):
            neutral.note("sampler_order")

    def sampling(self, config: engine.ModelConfig) -> engine.Sampling:
        sampling = super().sampling(config)
        if self.dynatemp_range:
            low = max(sampling.temperature - self.dynatemp_range, 0.0)
            high = min(sampling.temperature + self.dynatemp_range, 5.0)
            sampling = replace(sampling, dynatemp_low=low, dynatemp_high=high)
        return replace(sampling, temperature_last=True) if self._asks_for(_HEAT_LAST) else sampling

    def _asks_for(self, order: Sequence[int]) -> bool:
        """Whether `sampler_order`, without inactive samplers, equals `order`."""
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


def _refuse_placeholders(prompt: object) -> None:
    if isinstance(prompt, str) and (found := _PLACEHOLDER.search(prompt)):
        raise BadRequest(
            f"replace_instruct_placeholders: the prompt has {found[0]}, which the client must"
            " replace with the model's own tags",
            "replace_instruct_placeholders",
        )


class KoboldStream(Kobold):
    """The request of a route that always streams."""

    withheld: ClassVar[frozenset[str]] = TextRequest.withheld

    stream: bool = True


class Textgen(OtherServers, OneText):
    model_config = called("textgen")
    usual_max_tokens = USUAL_MAX_TOKENS
    withheld: ClassVar[frozenset[str]] = TextRequest.withheld | _OF_STREAMS
    neutral: ClassVar[Table] = {**OtherServers.neutral, "auto_max_new_tokens": OFF}
    settled: ClassVar[Table] = {
        **_SETTLED,
        "do_sample": (True, False),  # false: greedy, see `settle`
        "dynamic_temperature": (True, False),  # the bounds of the temperature decide
        "n": (1,),
    }
    unset: ClassVar[Table] = {**OtherServers.unset, "preset": ("None",)}
    switches: ClassVar[tuple[Switch, ...]] = TEXTGEN_SWITCHES

    truncation_length: int | None = Field(
        None,
        ge=1,
        lt=2**31,
        description="Maximum number of tokens in prompt and completion together. A longer prompt"
        " is refused, not cut.",
    )

    @classmethod
    def settle(cls, given: dict[str, Any]) -> dict[str, Any]:
        given = super().settle(given)
        is_bounded = {"dynatemp_low", "dynatemp_high"} <= given.keys()
        if given.get("dynamic_temperature") is True and not is_bounded:
            raise BadRequest(
                "dynamic_temperature needs dynatemp_low and dynatemp_high", "dynamic_temperature"
            )
        if given.get("do_sample") is False:
            given = {**given, "do_sample": True, "temperature": 0.0}
        return given

    @property
    def max_context(self) -> tuple[int, str] | None:
        limit = self.truncation_length
        return None if limit is None else (limit, "truncation_length")


class Key(Parameters):
    genkey: str = Field("", max_length=1000, description="The key of the generation to end.")


class CountTokens(Parameters):
    prompt: str = Field(description="The text.")
    special: bool = Field(
        True, description="Whether to begin with the token that starts this model's prompts."
    )


class EncodeText(Parameters):
    text: str = Field(description="The text.")


class DecodeTokens(Parameters):
    tokens: list[TokenId] = Field(
        fail_fast=True, description="Token ids. Refused if an id is not in the vocabulary."
    )


def kobold_stream(body: dict[str, Any]) -> KoboldStream:
    """Parses a streamed request from its JSON body. Raises BadRequest."""
    return validate(KoboldStream, body)


_KOBOLD_ALONE = known_by(Kobold) - known_by(Textgen)


def is_textgen(body: dict[str, Any]) -> bool:
    """Whether a body is meant for text-generation-webui's API, which uses the same path. The name
    of the token limit distinguishes the two APIs.
    """
    return "max_new_tokens" in body and not body.keys() & _KOBOLD_ALONE


def generate(body: dict[str, Any]) -> Kobold | Textgen:
    """Parses a request from its JSON body. Raises BadRequest."""
    if is_textgen(body):
        return validate(Textgen, body)
    return validate(Kobold, body)
