"""Reads the rotary embedding from a config.json."""

from dataclasses import dataclass
from typing import Any

from switchyard.engine.errors import ModelError
from switchyard.engine.model.architectures import text_config

# The known kinds, and the settings that each requires.
REQUIRED: dict[str, tuple[str, ...]] = {
    "default": (),
    "mrope": (),  # several axes, equal for text
    "dynamic": ("factor",),
    "linear": ("factor",),
    "llama3": (
        *("factor", "low_freq_factor", "high_freq_factor"),
        "original_max_position_embeddings",
    ),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True, slots=True)
class Rope:
    kind: str  # a key of REQUIRED
    is_hidden: bool  # given in `rope_parameters`, which ExLlamaV2 does not read
    theta: float | None  # as given there
    settings: dict[str, Any]


def read_rope(model_config: dict[str, Any]) -> Rope:
    """The rotary embedding in `rope_parameters`, where transformers 5 writes it, or otherwise in
    `rope_scaling`. Raises ModelError if it is unknown or incomplete.
    """
    text = text_config(model_config)
    named = text.get("rope_parameters") or {}
    found = named or text.get("rope_scaling") or {}
    if not isinstance(found, dict):
        raise ModelError(f"config.json: the rotary embedding is {found!r}, which is not an object")
    settings = dict(found)
    if any(isinstance(value, dict) for value in settings.values()):
        raise ModelError(
            "config.json has a rotary embedding for each kind of layer in rope_parameters,"
            " where ExLlamaV2 doesn't look: use rope_theta and rope_scaling instead, as"
            " transformers 4 does"
        )
    if not named and "type" in settings and "rope_type" in settings:
        raise ModelError(
            "config.json has both type and rope_type in rope_scaling, which makes ExLlamaV2 fail:"
            " remove one of them"
        )
    kind = settings.get("rope_type") or settings.get("type") or "default"
    kind = "longrope" if kind == "su" else kind
    if kind not in REQUIRED:
        raise ModelError(
            f"the rotary embedding of config.json is {kind}, which ExLlamaV2 would ignore;"
            f" it knows {', '.join(REQUIRED)}"
        )
    partial = text.get("partial_rotary_factor", 1.0)
    if settings.get("partial_rotary_factor", partial) != partial:
        raise ModelError(
            "config.json has a partial_rotary_factor only in its rope_parameters, where ExLlamaV2"
            " doesn't look: put it next to rope_parameters instead"
        )
    for name in ("original_max_position_embeddings", "max_position_embeddings"):
        if text.get(name) is not None:  # takes precedence over a value inside
            settings[name] = text[name]
    missing = [name for name in REQUIRED[kind] if settings.get(name) is None]
    if missing:
        raise ModelError(f"config.json: a {kind} rotary embedding needs {' and '.join(missing)}")
    original = "original_max_position_embeddings"
    if kind == "longrope" and not named and original not in model_config:
        raise ModelError(
            f"config.json has {original} only in rope_scaling: move it to the top level"
        )
    theta = named.get("rope_theta")
    return Rope(kind, bool(named), None if theta is None else float(theta), settings)
