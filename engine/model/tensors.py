"""Reads names and sizes of a model's tensors from the headers of its .safetensors files."""

import json
from pathlib import Path

from switchyard.engine.errors import ModelError

LONGEST_HEADER = 100_000_000  # bytes; safetensors' own limit
WIDTHS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # bytes of a number that is loaded as float16


def read_sizes(root: Path) -> dict[str, int]:
    """Bytes of each loaded tensor, by name. Raises ModelError for a damaged file."""
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
            raise ModelError(f"{file} can't be read: {reason}; fetch it once more, whole") from None
    return sizes


def _read(file: Path) -> dict[str, int]:
    """Raises various errors for a file that is no .safetensors."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= LONGEST_HEADER:
            raise ValueError("it is no .safetensors file")
        header = json.loads(opened.read(length))
    header.pop("__metadata__", None)
    whole = 8 + length + max((one["data_offsets"][1] for one in header.values()), default=0)
    if (there := file.stat().st_size) < whole:
        raise ValueError(f"it is cut off, {there} of {whole} bytes")
    return {name: _size(one["dtype"], *one["data_offsets"]) for name, one in header.items()}


def _size(dtype: str, begin: int, end: int) -> int:
    return (end - begin) * 2 // WIDTHS[dtype] if dtype in WIDTHS else end - begin
