"""Numbers of the host for the device. Engine thread."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def upload(
    values: Sequence[Any] | np.ndarray, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Without waiting for what the device is at: torch.tensor(..., device=...) does."""
    return torch.as_tensor(values, dtype=dtype).to(device, non_blocking=True)
