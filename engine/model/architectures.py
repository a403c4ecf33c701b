"""The architectures and variants that ExLlamaV2 0.3.2 supports, as config.json names them.
ExLlamaV2 would load most other architectures as Llama, or would ignore a variant's differences.
"""

from typing import Any

from switchyard.engine.errors import ModelError

SILU = ("silu", "swish")
GELU = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast")  # names of one function, computed with tanh
OLD_GELU = (*GELU, "gelu")  # Gemma's config.json says gelu for this function

# The fixed activation of each family's feed-forward layers.
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Cohere2ForCausalLM": SILU,
    "CohereForCausalLM": SILU,
    "DbrxForCausalLM": SILU,
    "GPT2LMHeadModel": GELU,
    "GPTBigCodeForCausalLM": GELU,
    "Gemma2ForCausalLM": OLD_GELU,
    "Gemma3ForConditionalGeneration": OLD_GELU,
    "GemmaForCausalLM": OLD_GELU,
    "GemmoeForCausalLM": OLD_GELU,
    "Glm4ForCausalLM": SILU,
    "GraniteForCausalLM": SILU,
    "IndexForCausalLM": SILU,
    "InternLM2ForCausalLM": SILU,
    "LlamaForCausalLM": SILU,
    "LlavaForConditionalGeneration": SILU,  # Pixtral alone
    "MiniCPMForCausalLM": SILU,
    "Mistral3ForConditionalGeneration": SILU,
    "MistralForCausalLM": SILU,
    "MixtralForCausalLM": SILU,
    "OrionForCausalLM": SILU,
    "Phi3ForCausalLM": SILU,
    "Qwen2ForCausalLM": SILU,
    "Qwen2VLForConditionalGeneration": SILU,
    "Qwen2_5_VLForConditionalGeneration": SILU,
    "Qwen3ForCausalLM": SILU,
    "Qwen3MoeForCausalLM": SILU,
    "Starcoder2ForCausalLM": GELU,
    "YiForCausalLM": SILU,
}
PIXTRAL = ("LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration")

# Other fixed values: names in config.json, the default, the values that are computed.
_Fixed = tuple[tuple[str, ...], object, tuple[object, ...]]
FIXED: dict[str, tuple[_Fixed, ...]] = {
    "DbrxForCausalLM": (
        (("attn_config", "clip_qkv"), None, (None,)),
        (("ffn_config", "moe_normalize_expert_weights"), 1.0, (1.0,)),
    ),
    "GPT2LMHeadModel": (
        (("scale_attn_weights",), True, (True,)),
        (("scale_attn_by_inverse_layer_idx",), False, (False,)),
    ),
    "GPTBigCodeForCausalLM": (
        (("multi_query",), True, (True,)),
        (("scale_attn_weights",), True, (True,)),
    ),
    "Gemma2ForCausalLM": ((("use_bidirectional_attention",), False, (False,)),),
    "Gemma3ForConditionalGeneration": ((("use_bidirectional_attention",), False, (False,)),),
    "Qwen3MoeForCausalLM": (
        (("norm_topk_prob",), False, (True,)),
        (("decoder_sparse_step",), 1, (1,)),
        (("mlp_only_layers",), None, (None, [])),
    ),
    "Starcoder2ForCausalLM": (
        (("use_bias",), True, (True,)),
        (("norm_type",), "layer_norm", ("layer_norm",)),
        (("mlp_type",), "default", ("default",)),
    ),
}


def check_architecture(model_config: dict[str, Any]) -> str:
    """Returns the architecture. Raises ModelError if it is unknown, or is a variant that ExLlamaV2
    would compute wrongly.
    """
    name = architecture_of(model_config)
    vision = model_config.get("vision_config")
    kind = vision.get("model_type") if isinstance(vision, dict) else None
    if name not in ACTIVATIONS or (name in PIXTRAL and kind != "pixtral"):
        what = f"{name} (with {kind or 'no'} vision)" if name in PIXTRAL else name
        raise ModelError(
            f"ExLlamaV2 doesn't know the architecture {what}, and would load it as a Llama. It"
            f" knows {', '.join(sorted(ACTIVATIONS))}; serve one of these"
        )
    _check_activation(name, model_config)
    for path, absent, computed in FIXED.get(name, ()):
        value = _find(text_config(model_config), path, absent)
        if value not in computed:
            raise _refusal(name, ".".join(path), value, computed[0])
    return name


def architecture_of(model_config: dict[str, Any]) -> str:
    """Raises ModelError unless config.json names exactly one architecture."""
    named = model_config["architectures"]
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise ModelError(f"config.json: architectures must name one architecture, but is {named!r}")
    name: str = named[0]
    return name


def text_config(model_config: dict[str, Any]) -> dict[str, Any]:
    """The language model's configuration. A vision model has a part of it in `text_config`."""
    inner = model_config.get("text_config")
    return {**model_config, **inner} if isinstance(inner, dict) else model_config


def _check_activation(name: str, model_config: dict[str, Any]) -> None:
    text, computed = text_config(model_config), ACTIVATIONS[name]
    keys = [("hidden_activation",), ("hidden_act",), ("activation_function",)]
    for path in (*keys, ("ffn_config", "ffn_act_fn", "name")):
        value = _find(text, path, None)
        if value is not None and value not in computed:
            raise _refusal(name, ".".join(path), value, computed[0])


def _refusal(name: str, path: str, value: object, computed: object) -> ModelError:
    return ModelError(
        f"config.json has a {path} of {value}, which ExLlamaV2 ignores: its {name} computes"
        f" {computed}. The generated text would be wrong; serve another model"
    )


def _find(config: Any, path: tuple[str, ...], absent: object) -> object:
    for key in path:
        if not isinstance(config, dict) or config.get(key) is None:
            return absent
        config = config[key]
    found: object = config
    return found
