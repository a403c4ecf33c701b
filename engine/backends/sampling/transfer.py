"""Copies data between host and device without waiting for the device. Used on the engine thread."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch


def upload(
    values: Sequence[Any] | np.ndarray, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Copies data to the device. Unlike torch.tensor(..., device=...), this function does not
    wait.
    """
    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)


def column(
    values: Iterable[float], device: torch.device, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """A tensor with one value for each row, (rows, 1)."""
    return upload(list(values), dtype, device)[:, None]


class Download:
    """Tensors that are being copied to the host. Doesn't wait for later work on the device."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        """`tensors`: all on one device."""
        self._tensors = [tensor.to("cpu", non_blocking=True) for tensor in tensors]
        self._arrived: torch.cuda.Event | None = None
        if tensors[0].is_cuda:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(tensors[0].device))

    def take(self) -> list[torch.Tensor]:
        """Waits for the tensors."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._tensors
