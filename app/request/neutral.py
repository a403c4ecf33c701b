"""What a request asks for that asks for nothing: taken, and told. One context for each request.

The tables are by whose clients send the fields; each wire format's requests say which they take.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

MAX_TOLD = 1000  # characters

Values = tuple[Any, ...]  # of a field that ask for nothing
Table = Mapping[str, Values]

ANY: Values = (...,)  # all of them: what a client keeps for itself, or a hint
OFF, ON, ZERO, ONE = (False,), (True,), (0, 0.0), (1, 1.0)

# OpenAI's API has them, or servers and libraries that speak it.
OPENAI: Table = {
    "cache_salt": ANY,
    "metadata": ANY,
    "prediction": ANY,
    "prompt_cache_key": ANY,
    "prompt_cache_options": ANY,
    "prompt_cache_retention": ANY,
    "request_id": ANY,
    "safety_identifier": ANY,
    "service_tier": ("auto", "default", "flex"),
    "store": (False, True),
    "verbosity": ANY,
}

# vLLM, SGLang, llama.cpp and OpenRouter have them beside those.
SERVERS: Table = {
    "add_bos_token": ON,
    "bad_words": ([],),
    "cache_prompt": (False, True),
    "early_stopping": OFF,
    "guided_decoding_backend": ANY,
    "id_slot": ANY,
    "length_penalty": ONE,
    "provider": ({},),
    "return_token_ids": OFF,
    "samplers": ANY,
    "skip_special_tokens": ON,
    "spaces_between_special_tokens": ON,
    "timings_per_token": (False, True),
    "transforms": ([],),
    "use_beam_search": OFF,
    "usage": ({"include": True}, {"include": False}, {}),
}

# Samplers, and what belongs to them, of servers for the clients of which one set of fields is for
# all: SillyTavern, KoboldAI Lite.
FRONT_ENDS: Table = {
    "adaptive_decay": ANY,
    "adaptive_target": (-1, -1.0, -0.01, 0, 0.0),
    "api_server": ANY,
    "api_type": ANY,
    "custom_token_bans": ("",),
    "do_sample": ON,
    "dynatemp_range": ZERO,
    "encoder_repetition_penalty": ONE,
    "epsilon_cutoff": ZERO,
    "eta_cutoff": ZERO,
    "include_reasoning": ON,  # bare completions split no thoughts off
    "legacy_api": (False, True),
    "max_tokens_second": ZERO,
    "min_keep": (0, 0.0, 1, 1.0),
    "no_repeat_ngram_size": ZERO,
    "nsigma": ZERO,
    "num_beams": (1,),
    "num_ctx": ANY,
    "penalty_alpha": ZERO,
    "rep_pen_slope": ANY,
    "sampler_order": ANY,
    "sampler_priority": ANY,
    "speculative_ngram": OFF,
    "top_n_sigma": (-1, -1.0, 0, 0.0),
    "truncation_length": ANY,
}

# Values by which the same clients leave a parameter to the server.
NO_TEXT: Table = {
    "banned_strings": ("",),
    "grammar": ("",),
    "logit_bias": ([],),
    "negative_prompt": ("",),
}

_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}", re.ASCII)


@dataclass(slots=True)
class _Told:
    takes_unknown: bool = False
    names: dict[str, None] = field(default_factory=dict)


_told: ContextVar[_Told | None] = ContextVar("told", default=None)


def but(table: Table, *names: str) -> Table:
    """Without these, which are honoured."""
    return {name: values for name, values in table.items() if name not in names}


def begin(takes_unknown: bool = False) -> None:
    """A request of which nothing has been read."""
    _told.set(_Told(takes_unknown))


def end() -> None:
    """What follows on this thread is no request's, or another's."""
    _told.set(None)


def is_telling() -> bool:
    """Whether there is an answer to tell it."""
    return _told.get() is not None


def note(name: str) -> None:
    """Of a field, as its documentation has it, or of one that a client has made up."""
    if (of_request := _told.get()) is not None:
        of_request.names[name if _NAME.fullmatch(name) else "?"] = None


def takes_unknown() -> bool:
    """Whether fields that nobody knows are told instead of refused."""
    of_request = _told.get()
    return of_request is not None and of_request.takes_unknown


def told() -> str:
    """The names, with commas between them; of very many, the first."""
    of_request = _told.get()
    text = ",".join(of_request.names) if of_request is not None else ""
    return text if len(text) <= MAX_TOLD else text[: text.rindex(",", 0, MAX_TOLD - 4)] + ",..."


def asks_for_nothing(value: Any, values: Values) -> bool:
    """By type too: to Python, 0 is False."""
    return values is ANY or any(type(value) is type(other) and value == other for other in values)
