"""Determines the sizes of the float16 copies of EXL2 weights, and which models can have them. Does
only arithmetic.
"""

from collections.abc import Mapping
from typing import Any

from switchyard.engine.model.layers import read_layers
from switchyard.engine.model.shape import Shape

# Families of plain layers: no norms of queries and keys, no caps, a residual in float16.
FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "YiForCausalLM")
FLOAT16 = 2  # bytes
HEAD = "lm_head.q_weight"
PRODUCTS = 20 * 2**20  # bytes of unfinished sums of our own products, on the largest GPU
NUM_PARALLEL = 4  # rows of `inner_size` that a feed-forward layer has at once, for each token


def unpacked_sizes(
    shape: Shape, model_config: Mapping[str, Any], sizes: Mapping[str, int], max_seq_len: int
) -> tuple[int, ...]:
    """The bytes of a float16 copy of each module, in the order of `Footprint.modules`, or 0 if a
    module has no copy. The result is empty for a model that can't have copies. `sizes`: the bytes
    of all tensors, by name; `max_seq_len`: in tokens.
    """
    if obstacle(shape, model_config, max_seq_len) is not None:
        return ()
    hidden, queries = shape.hidden_size, shape.num_heads * shape.head_dim
    keys = shape.num_kv_heads * shape.head_dim
    attention = FLOAT16 * hidden * (2 * queries + 2 * keys)
    feed_forward = FLOAT16 * 3 * hidden * shape.inner_size
    head = FLOAT16 * hidden * (shape.vocab_size + -shape.vocab_size % 32) * (HEAD in sizes)
    return (*(attention, feed_forward) * shape.num_layers, 0, head)


def obstacle(shape: Shape, model_config: Mapping[str, Any], max_seq_len: int) -> str | None:
    """Why exllamav2 must compute the layers, or None if our own code can."""
    [name] = model_config["architectures"]
    quantization = model_config.get("quantization_config")
    if not isinstance(quantization, dict) or quantization.get("quant_method") != "exl2":
        return "its weights are not EXL2"
    if name not in FAMILIES:
        return f"it is a {name}"
    windows = [layer.window for layer in read_layers(dict(model_config), shape.num_layers)]
    if any(window is not None and window < max_seq_len for window in windows):
        return "its attention has a window"
    return None


def work_space(shape: Shape, max_rows: int, max_seq_len: int) -> int:
    """The bytes of work space that a pass with copies takes in addition to the copies. `max_rows`:
    the maximum number of tokens in a pass.
    """
    rotary = 2 * FLOAT16 * max_seq_len * shape.head_dim // 2
    return FLOAT16 * max_rows * NUM_PARALLEL * shape.inner_size + rotary


def products_space(shape: Shape, max_rows: int) -> int:
    """The bytes that our own matrix products take in addition to exllamav2's work space.
    `max_rows`: the maximum number of tokens in a pass.
    """
    return FLOAT16 * max_rows * 2 * shape.inner_size + PRODUCTS
