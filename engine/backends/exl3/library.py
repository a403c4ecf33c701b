"""Changes that this backend makes inside exllamav3."""

from typing import Any

import torch
from exllamav3.modules.multilinear import SlicedMultiLinear

# Modules that launch the same kernels in every pass, regardless of the text.
PLAIN = ("TransformerBlock", "ParallelDecoderBlock", "RMSNorm", "LayerNorm", "Linear", "Embedding")

_own_pointers = SlicedMultiLinear.c_ptrs
_kept: list[torch.Tensor] = []  # graphs copy from these at each replay


def mend_pointers() -> None:
    """Allow passes of 9 to 32 rows to be captured. In these passes, one product computes queries,
    keys and values, and exllamav3 sends their addresses to the GPU from pageable memory, which CUDA
    forbids during a capture. Idempotent.
    """
    SlicedMultiLinear.c_ptrs = _pointers


def _pointers(self: Any, outputs: list[torch.Tensor]) -> torch.Tensor:
    if not torch.cuda.is_current_stream_capturing():
        own: torch.Tensor = _own_pointers(self, outputs)
        return own
    places = zip(self.slice_targets, self.slice_offsets, strict=True)
    addresses = [outputs[i].data_ptr() + first * outputs[i].element_size() for i, first in places]
    sent = torch.tensor(addresses, dtype=torch.long).pin_memory()
    _kept.append(sent)
    return sent.to(self.device, non_blocking=True)
