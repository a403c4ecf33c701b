"""Estimates a model's GPU memory from config.json and the sizes of its tensors, without torch."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from switchyard.engine.config import ModelConfig
from switchyard.engine.errors import ModelError
from switchyard.engine.memory.estimate import Footprint
from switchyard.engine.memory.lengths import Lengths, lengths
from switchyard.engine.memory.unpacked import products_space, unpacked_sizes, work_space
from switchyard.engine.model.exl3 import check_exl3_tensors, check_settings, is_by_exl3, is_exl3
from switchyard.engine.model.model_dir import ModelDir, read_config
from switchyard.engine.model.shape import Shape, read_shape
from switchyard.engine.model.tensors import MOST_BITS, planned_sizes, read_sizes

# Names of the families' tensors.
VISION = re.compile(r"(?:^|\.)(?:vision_\w+|visual|multi_modal_\w+)\.")
LAYER = re.compile(r"(?:^|\.)(?:layers|blocks|h)\.(\d+)\.(.*)")
ATTENTION = re.compile(r"(?:^|[._])(?:attn|attention)\.")
EMBEDDING = re.compile(r"(?:^|\.)(?:embed_tokens|tok_embeddings|wte)\.")
HEAD = re.compile(r"(?:^|\.)(?:lm_head|output)\.")

MAX_UNPACKED = 2**29  # numbers of a matrix that exllamav2 unpacks at once
BUFFER = 128  # bytes that exllamav2 adds to each of its buffers
# Bytes that torch keeps for each stream with matrix products. The largest value is an H200's.
WORKSPACE = 32 * 2**20


def measure(config: ModelConfig, bits: float | None = None) -> tuple[list[Footprint], Lengths]:
    """Returns the footprints in the order of loading (the draft model's, if there is one, then the
    main model's), and the main model's lengths. `bits`: the width of weights to plan for, in which
    case only config.json is read. A draft model that has weights keeps its own width. Raises
    ModelError.
    """
    model_config, sizes = _read(config, config.path, bits)
    check_settings(config, model_config)
    shape = read_shape(model_config)
    found = lengths(config, shape.max_seq_len, shape.vocab_size)
    is_whole = is_by_exl3(config, model_config)
    footprint = _footprint(Path(config.path), model_config, sizes, found, is_whole)
    if (
        footprint.unpacked
        and config.products == "auto"
        and not (config.has_draft or config.loras or config.tensor_parallel)
    ):
        space = products_space(shape, _rows(found))
        footprint = replace(footprint, products=space)
    footprints = [footprint]
    if config.draft_model is not None:
        root = Path(config.draft_model)
        own_bits = None if any(root.glob("*.safetensors")) else bits
        draft_config, sizes = _read(config, config.draft_model, own_bits)
        if is_exl3(draft_config):
            raise ModelError(
                f"draft_model {root} needs ExLlamaV3: use another draft model", "draft_model"
            )
        footprints.insert(0, _footprint(root, draft_config, sizes, found))
    return footprints, found


def _read(
    config: ModelConfig, path: str, bits: float | None
) -> tuple[dict[str, Any], dict[str, int]]:
    """Reads config.json, and the sizes of all tensors by name."""
    if bits is not None:
        model_config = read_config(path)
        method = "exl3" if is_by_exl3(config, model_config) else "exl2"
        planned = {"quant_method": method} if bits <= MOST_BITS else None
        model_config = {**model_config, "quantization_config": planned}
        return model_config, planned_sizes(read_shape(model_config), bits)
    model_dir = ModelDir.read(path)
    sizes = read_sizes(model_dir.path)
    check_exl3_tensors(model_dir.path, sizes)
    return model_dir.config, sizes


def _footprint(
    root: Path,
    model_config: dict[str, Any],
    sizes: Mapping[str, int],
    found: Lengths,
    is_whole: bool = False,
) -> Footprint:
    shape = read_shape(model_config)
    return Footprint(
        modules=_modules(root, shape, sizes, is_whole),
        is_whole=is_whole,
        fixed=_fixed(shape, found),
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        unpacked=unpacked_sizes(shape, model_config, sizes, found.max_seq_len),
        unpacked_fixed=work_space(shape, _rows(found), found.max_seq_len),
    )


def _rows(found: Lengths) -> int:
    """The maximum number of tokens in a pass."""
    return found.max_input_len * found.max_batch_size


def _modules(
    root: Path, shape: Shape, sizes: Mapping[str, int], is_whole: bool
) -> tuple[tuple[int, bool], ...]:
    attention: dict[int, int] = defaultdict(int)
    others: dict[int, int] = defaultdict(int)
    embedding = head = rest = 0
    for name, size in sizes.items():
        if VISION.search(name):
            continue  # never loaded
        if found := LAYER.search(name):
            layers = attention if ATTENTION.search(found[2]) else others
            layers[int(found[1])] += size
        elif EMBEDDING.search(name):
            embedding += size
            rest += size * is_whole  # otherwise it stays in the host's memory
        elif HEAD.search(name):
            head += size
        else:
            rest += size
    for i in range(shape.num_layers):
        if not attention[i] or not others[i]:
            raise ModelError(
                f"the files in {root} lack weights of layer {i} (there are {shape.num_layers},"
                " numbered from 0): is a file missing?"
            )
    pairs = [(attention[i], others[i]) for i in range(shape.num_layers)]
    if shape.is_parallel:
        layered = [(sum(pair), True) for pair in pairs]
    else:
        layered = [part for a, b in pairs for part in ((a, True), (b, False))]
    return (*layered, (rest, False), (head or embedding, False))


def _fixed(shape: Shape, found: Lengths) -> int:
    """The bytes of work space that exllamav2 and torch allocate for sine and cosine tables,
    activations and logits.
    """
    rows = _rows(found)
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    hidden, inner = shape.hidden_size, shape.inner_size

    def buffers(*widths: int) -> int:
        return sum(2 * rows * width + BUFFER for width in widths)

    attention = buffers(max(queries, hidden)) + max(
        _unpacked(hidden, queries), _unpacked(hidden, keys), _unpacked(queries, hidden)
    )
    feed_forward = max(_unpacked(hidden, inner), _unpacked(inner, hidden))
    activations = 2 * rows * (4 * hidden + queries + 2 * keys)
    if shape.num_experts:
        feed_forward += buffers(hidden, hidden, inner, inner, shape.num_experts)
        activations += 2 * rows * 4 * inner  # one expert may get all rows
    else:
        feed_forward += buffers(hidden, max(hidden, inner), max(hidden, inner))
    rotary = 2 * 2 * found.max_seq_len * shape.head_dim * shape.num_tables
    logits = 2 * max(found.max_input_len, found.num_kept_logits) * shape.vocab_size
    work_space = max(attention, feed_forward, _unpacked(hidden, shape.vocab_size))
    # One stream captures graphs, one runs other passes, a third runs experts of long prompts.
    num_streams = 3 if shape.num_experts else 2
    return work_space + num_streams * WORKSPACE + rotary + activations + logits


def _unpacked(num_in: int, num_out: int) -> int:
    """The size in bytes of a float16 matrix whose rows are padded to multiples of 32 numbers."""
    return 2 * min(num_in * (num_out + -num_out % 32), MAX_UNPACKED)
