"""Parameters without effect, which are accepted and listed in the response. Each request has its
own context. A neutral value, such as 0 for a penalty that this server doesn't have, has no effect.
The tables group fields by the clients that send them, and each wire format chooses its tables.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

MAX_TOLD = 1000  # maximum length of the header, in characters

Values = tuple[Any, ...]  # the neutral values of a field
Table = Mapping[str, Values]

ANY: Values = (...,)  # every value is neutral: the field is a hint, or a client's own note
OFF, ON, ZERO, ONE = (False,), (True,), (0, 0.0), (1, 1.0)
_BUDGETS = ("reasoning_budget", "reasoning_budget_tokens", "thinking_budget")
# Stream options that have no effect where streams don't implement them.
_STREAMED = ("include_obfuscation", "include_usage")

# Fields of OpenAI's API, and of servers and libraries that use this API.
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

# Further fields of vLLM, SGLang, llama.cpp, TabbyAPI and OpenRouter.
SERVERS: Table = {
    "add_bos_token": ON,
    "cache_prompt": (False, True),
    "early_stopping": OFF,
    "guided_decoding_backend": ANY,
    "id_slot": ANY,
    "length_penalty": ONE,
    "loop_detect_window": ZERO,
    "prompt_template": ("",),
    "provider": ({},),
    "response_prefix": ("",),
    "samplers": ANY,
    "skip_special_tokens": ON,
    "spaces_between_special_tokens": ON,
    "transforms": ([],),
    "use_beam_search": OFF,
    "usage": ({"include": True}, {"include": False}, {}),
}

# Fields that request vLLM's details about tokens, and llama.cpp's timings in a stream.
SCORES: Table = {"prompt_logprobs": (), "return_token_ids": OFF, "return_tokens_as_token_ids": OFF}
RUNNING: Table = {"timings_per_token": (False, True)}

# Fields of other servers' samplers. SillyTavern and KoboldAI Lite send one set of fields to all
# servers.
FRONT_ENDS: Table = {
    "adaptive_decay": ANY,
    "adaptive_target": (-1, -1.0, -0.01, 0, 0.0),
    "api_server": ANY,
    "api_type": ANY,
    "do_sample": ON,
    "dynatemp_range": ZERO,
    "encoder_repetition_penalty": ONE,
    "epsilon_cutoff": ZERO,
    "eta_cutoff": ZERO,
    "legacy_api": (False, True),
    "max_tokens_second": ZERO,
    "min_keep": (0, 0.0, 1, 1.0),
    "no_repeat_ngram_size": ZERO,
    "nsigma": ZERO,
    "num_beams": (1,),
    "penalty_alpha": ZERO,
    "rep_pen_slope": ANY,
    "sampler_order": ANY,
    "sampler_priority": ANY,
    "speculative_ngram": OFF,
    "top_n_sigma": (-1, -1.0, 0, 0.0),
    "truncation_length": ANY,
}

# Options with which Ollama's clients, including Open WebUI, control how a model is loaded.
LOADING: Table = {
    "f16_kv": ANY,
    "keep_alive": ANY,
    "low_vram": ANY,
    "main_gpu": ANY,
    "num_batch": ANY,
    "num_ctx": ANY,
    "num_gpu": ANY,
    "num_keep": ANY,
    "num_thread": ANY,
    "numa": ANY,
    "penalize_newline": ANY,
    "use_mlock": ANY,
    "use_mmap": ANY,
    "vocab_only": ANY,
}

# Fields about chats and choices, for routes whose bodies don't have them.
FORMATS: Table = {
    "add_generation_prompt": ON,
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "continue_final_message": OFF,
    "documents": ([],),
    "echo": OFF,
    "enable_thinking": OFF,
    "include_reasoning": ON,
    "logprobs": OFF,
    "n": (1,),
    "parallel_tool_calls": (False, True),
    "reasoning_effort": ANY,
    "stream_options": ({}, *({name: on} for name in _STREAMED for on in (False, True))),
    "suffix": ("",),
    "template_vars": ({},),
    "think": OFF,
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "user": ANY,
    **dict.fromkeys((*_BUDGETS, "thinking_token_budget"), ()),
}

# Values with which these clients leave a parameter to the server.
NO_TEXT: Table = {
    "allowed_token_ids": ("",),
    "banned_strings": ("",),
    "banned_token_ids": ("",),
    "grammar": ("",),
    "logit_bias": ([],),
    "negative_prompt": ("",),
    "regex": ("",),
    "response_format": ("",),
}

_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}", re.ASCII)


@dataclass(slots=True)
class _Told:
    takes_unknown: bool = False
    names: dict[str, None] = field(default_factory=dict)


_told: ContextVar[_Told | None] = ContextVar("told", default=None)


def begin(takes_unknown: bool = False) -> None:
    """Starts the context of a request, before its body is read."""
    _told.set(_Told(takes_unknown))


def end() -> None:
    """Ends the context of this thread's request."""
    _told.set(None)


def is_telling() -> bool:
    """Whether this thread has a request whose response will list the parameters without effect."""
    return _told.get() is not None


def note(name: str) -> None:
    """Adds a field's name to those that the response lists. A name that is unsafe in a header
    becomes `?`.
    """
    if (of_request := _told.get()) is not None:
        of_request.names[name if _NAME.fullmatch(name) else "?"] = None


def takes_unknown() -> bool:
    """Whether unknown parameters are listed in the response instead of being refused."""
    of_request = _told.get()
    return of_request is not None and of_request.takes_unknown


def told() -> str:
    """The noted names, joined by commas, in at most MAX_TOLD characters."""
    of_request = _told.get()
    text = ",".join(of_request.names) if of_request is not None else ""
    return text if len(text) <= MAX_TOLD else text[: text.rindex(",", 0, MAX_TOLD - 4)] + ",..."


def asks_for_nothing(value: Any, values: Values) -> bool:
    """Whether `value` is one of `values` and has the same type. The type matters because in Python
    0 equals False.
    """
    return values is ANY or any(type(value) is type(other) and value == other for other in values)
