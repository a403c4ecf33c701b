"""A GPU's access to embeddings, which ExLlamaV2 keeps in the host's memory."""

from typing import Any

import torch
import torch.nn.functional as F
from torch.cuda import check_error


class Embeddings:
    """The embeddings of a model; the GPU reads them from the host's memory."""

    def __init__(self, module: Any, device: torch.device) -> None:
        config, archparams = module.model.config, module.archparams
        self._is_wide = archparams.residual_stream_fp32
        self._scale = config.hidden_size**0.5 if archparams.normalize_embeddings else None
        self._weights: torch.Tensor = module.embedding.weight.data
        self._address = self._weights.data_ptr()
        with torch.cuda.device(device):
            check_error(_cuda().cudaHostRegister(self._address, self._weights.nbytes, 0))
            self._table = torch.as_tensor(_Seen(self._weights), device=device)

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """As ExLlamaV2Embedding; (tokens, hidden size)."""
        found = F.embedding(token_ids, self._table)
        if self._is_wide:
            found = found.float()
        return found if self._scale is None else found.mul_(self._scale)

    def have(self, token_ids: torch.Tensor) -> bool:
        """Whether there is an embedding for each of the tokens, which are on the host."""
        least, most = token_ids.aminmax()
        return int(least) >= 0 and int(most) < self.size

    @property
    def size(self) -> int:
        """Number of embeddings."""
        return len(self._table)

    def close(self) -> None:
        torch.cuda.synchronize(self._table.device)
        check_error(_cuda().cudaHostUnregister(self._address))


def learned(module: Any, positions: torch.Tensor, length: int) -> torch.Tensor:
    """Learned position embeddings, (rows, length, hidden size). `positions`: of each row's first
    token.
    """
    places = positions[:, None] + torch.arange(length, device=positions.device)
    weight = module.embedding.weight
    return F.embedding(places.clamp(max=len(weight) - 1), weight)  # padding rows exceed the table


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class _Seen:
    """Host memory under the address at which a GPU sees it, which is the same."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # a reference keeps the memory

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": tuple(self._tensor.shape),
            "typestr": "<f2",
            "data": (self._tensor.data_ptr(), False),
            "version": 3,
        }
