"""The names and sizes of a model's tensors, from the headers of its .safetensors files or
calculated from its shape.
"""

import json
from pathlib import Path

from switchyard.engine.errors import ModelError
from switchyard.engine.model.shape import Shape

LONGEST_HEADER = 100_000_000  # bytes; safetensors' own limit
WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes of a number that is loaded as float16

HEAD_BITS = 6.0  # of the last matrix of an EXL2 model, by the converter's default
MOST_BITS = 8.0  # of an EXL2 model; above this, it is float16


def planned_sizes(shape: Shape, bits: float) -> dict[str, int]:
    """The bytes of the tensors in a model with this shape, if its matrices have `bits` bits per
    weight.
    """
    hidden, width = shape.hidden_size, bits / 8
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    inner = max(shape.num_experts, 1) * shape.inner_size * shape.num_matrices
    others = int(hidden * inner * width) + 2 * hidden * (2 + shape.num_experts)  # norms, router
    sizes = {}
    for i in range(shape.num_layers):
        sizes[f"layers.{i}.attention.weights"] = int(2 * hidden * (queries + keys) * width)
        sizes[f"layers.{i}.others"] = others
    table = hidden * shape.vocab_size
    sizes["embed_tokens.weight"] = 2 * table
    is_exl2 = bits <= MOST_BITS
    head = "lm_head.q_weight" if is_exl2 else "lm_head.weight"
    sizes[head] = int(table * (HEAD_BITS if is_exl2 else bits) / 8)
    return sizes


def read_sizes(root: Path) -> dict[str, int]:
    """The bytes of each loaded tensor, by name. Raises ModelError for a damaged file."""
    sizes: dict[str, int] = {}
    for file in sorted(root.glob("*.safetensors")):
        try:
            sizes |= _read(file)
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as reason:
            raise ModelError(f"{file} can't be read: {reason}; download it again") from None
    return sizes


def _read(file: Path) -> dict[str, int]:
    """Raises various errors for a file that isn't in .safetensors format."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= LONGEST_HEADER:
            raise ValueError("it is not a .safetensors file")
        header = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    whole = 8 + length + max((one["data_offsets"][1] for one in header.values()), default=0)
    if (there := file.stat().st_size) < whole:
        raise ValueError(f"it is cut off after {there} of {whole} bytes")
    return {name: _size(one["dtype"], *one["data_offsets"]) for name, one in header.items()}


def _size(dtype: str, begin: int, end: int) -> int:
    return (end - begin) * 2 // WIDTHS[dtype] if dtype in WIDTHS else end - begin
