"""The sizes of a model's layers, read from config.json as ExLlamaV2 0.3.2 does."""

from dataclasses import dataclass
from typing import Any

from switchyard.engine.errors import ModelError
from switchyard.engine.model.architectures import text_config
from switchyard.engine.model.exl3 import is_exl3
from switchyard.engine.model.layers import read_layers
from switchyard.engine.model.rope import read_rope

# Families with mixtures of experts; with attention and feed-forward as one parallel module; with
# one key/value head for all queries.
MIXTURES = (
    *("MixtralForCausalLM", "GemmoeForCausalLM"),
    *("DbrxForCausalLM", "Qwen3MoeForCausalLM"),
)
PARALLEL = ("CohereForCausalLM", "Cohere2ForCausalLM")
MULTI_QUERY = ("GPTBigCodeForCausalLM",)
# Families whose feed-forward layers have no gate: two matrices, not three.
UNGATED = ("GPT2LMHeadModel", "GPTBigCodeForCausalLM", "Starcoder2ForCausalLM")
# Optional entries of config.json, and how to derive them from others.
DEFAULTS = {
    "Gemma3ForConditionalGeneration": {
        "vocab_size": 262208,
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
    }
}
DEFAULT_CONTEXT = 2048
GPT2_INNER = 4  # times the hidden size
CONTEXTS = (
    *("max_sequence_length", "model_max_length", "max_position_embeddings", "max_seq_len"),
    "n_positions",
)


@dataclass(frozen=True, slots=True)
class Shape:
    hidden_size: int
    inner_size: int  # of a feed-forward layer, or of each expert
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_seq_len: int  # the model's own context, in tokens
    num_experts: int = 0
    is_parallel: bool = False  # attention and feed-forward are one module
    num_tables: int = 1  # sine and cosine tables
    num_matrices: int = 3  # of a feed-forward layer, or of each expert


def read_shape(model_config: dict[str, Any]) -> Shape:
    """The shape of a known architecture. Raises ModelError for a missing number."""
    [name] = model_config["architectures"]
    text = {**DEFAULTS.get(name, {}), **_told(text_config(model_config))}
    hidden_size = _count(text, "hidden_size", "d_model", "n_embd")
    num_heads = _count(text, "num_attention_heads", "n_heads", "n_head")
    usual = hidden_size * GPT2_INNER if name == "GPT2LMHeadModel" else None
    inner = _count(text, "intermediate_size", "ffn_config.ffn_hidden_size", "n_inner", or_=usual)
    num_layers = _count(text, "num_hidden_layers", "n_layers", "n_layer")
    kv_heads = _count(text, "num_key_value_heads", "attn_config.kv_n_heads", or_=num_heads)
    is_mixture = name in MIXTURES
    experts = ("num_local_experts", "ffn_config.moe_num_experts", "num_experts")
    is_any_plain = not is_exl3(model_config) and any(
        not layer.is_rotated for layer in read_layers(model_config, num_layers)
    )
    return Shape(
        hidden_size=hidden_size,
        inner_size=_count(text, "moe_intermediate_size", or_=inner) if is_mixture else inner,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=1 if name in MULTI_QUERY else kv_heads,
        head_dim=_count(text, "head_dim", or_=hidden_size // num_heads),
        vocab_size=_count(text, "vocab_size"),
        max_seq_len=_context(model_config, text),
        num_experts=_count(text, *experts) if is_mixture else 0,
        is_parallel=name in PARALLEL,
        num_matrices=2 if name in UNGATED else 3,
        num_tables=1 + (name == "Gemma3ForConditionalGeneration") + is_any_plain,
    )


def _told(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value is not None}


def _context(model_config: dict[str, Any], text: dict[str, Any]) -> int:
    context = _count(text, *CONTEXTS, or_=DEFAULT_CONTEXT)
    if is_exl3(model_config):
        return context
    rope = read_rope(model_config)
    if rope.kind == "yarn":  # YaRN serves the stretched length
        original = rope.settings["original_max_position_embeddings"]
        context = max(context, int(rope.settings["factor"] * original))
    return context


def _count(text: dict[str, Any], *names: str, or_: int | None = None) -> int:
    """The value of the first name that has a value; `a.b` means b inside a."""
    for name in names:
        outer, _, inner = name.rpartition(".")
        part = text.get(outer) if outer else text
        value = part.get(inner) if isinstance(part, dict) else None
        if value is None:
            continue
        if not isinstance(value, int | float) or value != int(value) or value < 1:
            raise ModelError(f"config.json: {name} is {value!r}, but must be a whole number")
        return int(value)
    if or_ is None:
        raise ModelError(f"config.json has no {' or '.join(names)}")
    return or_
