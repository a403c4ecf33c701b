"""What ExLlamaV2 0.3.2 would read wrongly from a config.json, without a word."""

import math
from dataclasses import dataclass
from typing import Any

from switchyard.engine.errors import ModelError

ROPE_TYPES = ("default", "linear", "su", "longrope", "yarn", "llama3", "mrope")
# Beyond a factor and an original context; values are what it assumes.
YARN = {"beta_fast": 32, "beta_slow": 1}


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotary embedding of a config.json."""

    kind: str
    is_hidden: bool  # in `rope_parameters`, where ExLlamaV2 doesn't look
    theta: float | None  # told there
    settings: dict[str, Any]


def read_rope(model_config: dict[str, Any]) -> Rope:
    """Of `rope_parameters`, which transformers 5 writes, else of `rope_scaling`."""
    inner = model_config.get("text_config") or {}
    named = model_config.get("rope_parameters") or inner.get("rope_parameters") or {}
    settings = named or model_config.get("rope_scaling") or inner.get("rope_scaling") or {}
    if any(isinstance(value, dict) for value in settings.values()):
        return Rope("layered", bool(named), None, settings)  # one for each kind of layers
    kind = settings.get("rope_type") or settings.get("type") or "default"
    partial = model_config.get("partial_rotary_factor", 1.0)
    if named.get("partial_rotary_factor", partial) != partial:
        kind = "partial"
    theta = named.get("rope_theta")
    return Rope(kind, bool(named), None if theta is None else float(theta), settings)


def check(exl2_config: Any, model_config: dict[str, Any]) -> None:
    """Raises ModelError where the model would load and its text be wrong. Mends `exl2_config`
    where that is enough.
    """
    if exl2_config.architecture != exl2_config.arch.arch_string:
        raise ModelError(
            f"ExLlamaV2 doesn't know the architecture {exl2_config.architecture}; it would load the"
            " model as a Llama"
        )
    _check_weights(model_config)
    rope = read_rope(model_config)
    if rope.kind not in ROPE_TYPES:
        raise ModelError(f"ExLlamaV2 has no {rope.kind} rotary embedding, and would leave it out")
    if rope.kind == "yarn":
        _check_yarn(rope.settings)
    if rope.is_hidden and rope.kind != "default":
        raise ModelError(
            f"config.json has a {rope.kind} rotary embedding in rope_parameters, where ExLlamaV2"
            " doesn't look: write it as rope_theta and rope_scaling"
        )
    if rope.theta is not None:
        exl2_config.rotary_embedding_base = rope.theta


def _check_weights(model_config: dict[str, Any]) -> None:
    quantization = model_config.get("quantization_config") or {}
    method = quantization.get("quant_method")
    if method not in (None, "exl2", "gptq"):
        raise ModelError(f"the weights are in {method}; ExLlamaV2 reads EXL2, GPTQ and float16")
    if method == "gptq" and quantization.get("bits") != 4:
        raise ModelError(
            f"the weights are GPTQ of {quantization.get('bits')} bits; ExLlamaV2 reads all as 4"
        )
    if str(quantization.get("checkpoint_format", "")).startswith("marlin"):
        raise ModelError("the weights are in Marlin's order, which ExLlamaV2 doesn't read")


def _check_yarn(settings: dict[str, Any]) -> None:
    assumed = {**YARN, "attention_factor": 0.1 * math.log(settings.get("factor", 1.0)) + 1.0}
    for name, value in assumed.items():
        if not math.isclose(settings.get(name) or value, value, rel_tol=1e-3):
            raise ModelError(
                f"config.json asks for a YaRN embedding with {name} {settings[name]}; ExLlamaV2"
                f" would take {value:.4g}"
            )
