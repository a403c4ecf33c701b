"""Sizes of the float16 copies of EXL2 weights, and which models can have them. Only arithmetic."""

from collections.abc import Mapping
from typing import Any

from switchyard.engine.model.layers import read_layers
from switchyard.engine.model.shape import Shape

# Families of plain layers: no norms of queries and keys, no caps, a residual in float16.
FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "YiForCausalLM")
FLOAT16 = 2  # bytes
HEAD = "lm_head.q_weight"
NUM_PARALLEL = 4  # rows of `inner_size` that a feed-forward layer has at once, for each token


def unpacked_sizes(
    shape: Shape, model_config: Mapping[str, Any], sizes: Mapping[str, int], max_seq_len: int
) -> tuple[int, ...]:
    """Bytes of a float16 copy of each module in the order of `Footprint.modules`, 0 where there is
    none. Empty for a model that can't have any. `sizes`: of all tensors, by name; `max_seq_len`: in
    tokens.
    """
    [name] = model_config["architectures"]
    quantization = model_config.get("quantization_config")
    if name not in FAMILIES or not isinstance(quantization, dict):
        return ()
    layers = read_layers(dict(model_config), shape.num_layers)
    if quantization.get("quant_method") != "exl2" or any(
        layer.window is not None and layer.window < max_seq_len for layer in layers
    ):
        return ()
    hidden, queries = shape.hidden_size, shape.num_heads * shape.head_dim
    keys = shape.num_kv_heads * shape.head_dim
    attention = FLOAT16 * hidden * (2 * queries + 2 * keys)
    feed_forward = FLOAT16 * 3 * hidden * shape.inner_size
    head = FLOAT16 * hidden * (shape.vocab_size + -shape.vocab_size % 32) * (HEAD in sizes)
    return (*(attention, feed_forward) * shape.num_layers, 0, head)


def work_space(shape: Shape, max_rows: int, max_seq_len: int) -> int:
    """Bytes that passes with the copies take beside them. `max_rows`: tokens in a pass."""
    rotary = 2 * FLOAT16 * max_seq_len * shape.head_dim // 2
    return FLOAT16 * max_rows * NUM_PARALLEL * shape.inner_size + rotary
