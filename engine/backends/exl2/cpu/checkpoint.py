"""The .safetensors files in a model directory, read tensor by tensor."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from switchyard.engine.errors import ModelError
from switchyard.engine.model.loadable import check_tensors

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


class Checkpoint:
    """The tensors in all files of a model, by name."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        """`files`: the open file that contains each tensor. Raises ModelError for tensors that a
        plain Llama does not have.
        """
        self._files = files
        check_tensors(files)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str, *shape: int) -> torch.Tensor:
        """Returns a float32 copy of the tensor `name`. Raises ModelError if the tensor is missing,
        or has the wrong shape or an unsupported type.
        """
        if name not in self._files:
            raise ModelError(f"the model has no tensor {name}: its files are incomplete")
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        if tensor.dtype not in DTYPES:
            raise ModelError(
                f"{name} is {tensor.dtype}, but the CPU backend reads only 16-bit and 32-bit floats"
            )
        if tensor.shape != shape:
            raise ModelError(f"{name} is {tuple(tensor.shape)}, but config.json requires {shape}")
        # Always a copy: otherwise a float32 tensor would be a view of the file.
        return tensor.to(torch.float32, copy=True)


@contextlib.contextmanager
def open_checkpoint(model_dir: str) -> Iterator[Checkpoint]:
    """Maps the files into memory until the `with` block ends. Raises ModelError."""
    with contextlib.ExitStack() as stack:
        files: dict[str, Any] = {}
        for path in sorted(Path(model_dir).glob("*.safetensors")):
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
            except (OSError, SafetensorError) as reason:
                raise ModelError(f"{path} can't be read: {reason}") from None
            files.update(dict.fromkeys(file.keys(), file))
        yield Checkpoint(files)
