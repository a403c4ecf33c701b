"""An exllamav2 model on one GPU, with all inputs on that GPU. Used on the engine thread."""

from typing import Any

import torch
import torch.nn.functional as F
from exllamav2.device import set_device_streams
from exllamav2.ext import exllamav2_ext as ext_c
from exllamav2.pos_embedding import ExLlamaV2PosEmbedding
from torch.cuda import check_error

from switchyard.engine.backends.exl2.cuda.captured.inputs import Part
from switchyard.engine.backends.exl2.cuda.experts import MAX_DENSE_TOKENS, is_dense
from switchyard.engine.backends.exl2.cuda.products.attention import JointParams, paged_params
from switchyard.engine.backends.exl2.cuda.products.layers import OwnProducts

PADDING_LOGIT = -65504.0  # of rows that pad the vocabulary; exllamav2's value

MAX_TUNED = 4  # maximum rows for which exllamav2 tunes its kernels
NUM_TUNED = 200


class Exl2Layers:
    """The `Layers` of a model for which `can_capture` returns True."""

    def __init__(
        self, model: Any, cache: Any, page_size: int, products: OwnProducts | None = None
    ) -> None:
        """`model`: exllamav2's model, which must be loaded. `products` are closed together with
        these layers.
        """
        self._products = products
        self._model = model
        self._cache = cache
        self._page_size = page_size
        self.device = torch.device("cuda", model.modules[1].device_idx)
        self.max_tokens: int = model.config.max_input_len
        if any(is_dense(module) for module in model.modules):
            self.max_tokens = min(self.max_tokens, MAX_DENSE_TOKENS)
        # Last, because the object must be closed from here on.
        self._embeddings = Embeddings(model.modules[0], self.device)

    def begin(self) -> None:
        set_device_streams()

    def prepare(self, token_ids: torch.Tensor, pages: torch.Tensor) -> None:
        """Run passes until exllamav2 has chosen its kernels. exllamav2 measures the first 200
        products of each shape and waits for them, which a graph can't capture.
        """
        rows, config = len(token_ids), self._model.config
        hidden = torch.zeros((rows, 1, config.hidden_size), dtype=torch.half, device=self.device)
        positions = torch.zeros(rows, dtype=torch.int32, device=self.device)
        is_tuned = rows <= MAX_TUNED and self._products is None
        num_passes = NUM_TUNED // config.num_hidden_layers if is_tuned else 1
        for _ in range(num_passes + 1):
            self.logits(token_ids, positions, pages)
        for _ in range(NUM_TUNED if is_tuned else 0):
            self._model.modules[-1].forward(hidden)

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, pages: torch.Tensor
    ) -> torch.Tensor:
        return self._finish(self._compute(token_ids, positions, pages, is_last=True))

    def joint_logits(self, prompts: Part, part: Part) -> torch.Tensor:
        """Computes prompts, and `logits` of `part`, in one pass. The rows of `part` may read what
        the prompts write. Needs `products`.
        """
        length = len(prompts.token_ids) // len(prompts.positions)
        rows = paged_params(part.pages, part.positions, 1, self._page_size)
        params = JointParams(
            (paged_params(prompts.pages, prompts.positions, length, self._page_size), length),
            (rows, 1),
        )
        token_ids = torch.cat((prompts.token_ids, part.token_ids))
        end = self._model.last_kv_layer_idx + 1
        x = self._through(self._embeddings(token_ids)[None], params, 1, end)
        x = x[0, -len(part.token_ids) :, None].contiguous()
        return self._finish(self._through(x, rows, end))

    def _through(
        self, x: torch.Tensor, params: Any, first: int, end: int | None = None
    ) -> torch.Tensor:
        for module in self._model.modules[first:end]:
            x = module.forward(x, cache=self._cache, attn_params=params, past_len=0, loras=None)
        return x

    def _finish(self, x: torch.Tensor) -> torch.Tensor:
        config = self._model.config
        if config.final_logit_softcapping:
            ext_c.softcap_(x, config.final_logit_softcapping)
        padding = self._model.modules[-1].padding
        if padding > 0:
            x[:, :, -padding:] = PADDING_LOGIT
        return x

    def compute(
        self, token_ids: torch.Tensor, positions: torch.Tensor, pages: torch.Tensor
    ) -> torch.Tensor:
        return self._compute(token_ids, positions, pages, is_last=False)

    def _compute(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        pages: torch.Tensor,
        is_last: bool,
    ) -> torch.Tensor:
        """Like ExLlamaV2.forward_chunk. Computes all layers if `is_last`; otherwise computes only
        as much as the keys and values need.
        """
        rows = len(positions)
        length = len(token_ids) // rows
        params = paged_params(pages, positions, length, self._page_size)
        x = self._embeddings(token_ids).view(rows, length, -1)
        end = None if is_last else self._model.last_kv_layer_idx + 1
        for module in self._model.modules[1:end]:
            if isinstance(module, ExLlamaV2PosEmbedding):  # its own code involves the host
                x = x + learned(module, positions, length)
            else:
                x = module.forward(x, cache=self._cache, attn_params=params, past_len=0, loras=None)
        return x

    def have(self, token_ids: torch.Tensor) -> bool:
        return self._embeddings.have(token_ids)

    def close(self) -> None:
        if self._products is not None:
            self._products.close()
        self._embeddings.close()


class Embeddings:
    """The embeddings of a model, which the GPU reads from the host's memory."""

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
        """Returns the same as ExLlamaV2Embedding: (tokens, hidden size)."""
        found = F.embedding(token_ids, self._table)
        if self._is_wide:
            found = found.float()
        return found if self._scale is None else found.mul_(self._scale)

    def have(self, token_ids: torch.Tensor) -> bool:
        """Whether there is an embedding for each token. The tokens are on the host."""
        least, most = token_ids.aminmax()
        return int(least) >= 0 and int(most) < self.size

    @property
    def size(self) -> int:
        """The number of embeddings."""
        return len(self._table)

    def close(self) -> None:
        torch.cuda.synchronize(self._table.device)
        check_error(_cuda().cudaHostUnregister(self._address))


def learned(module: Any, positions: torch.Tensor, length: int) -> torch.Tensor:
    """Returns learned position embeddings, (rows, length, hidden size). `positions`: the position
    of each row's first token.
    """
    places = positions[:, None] + torch.arange(length, device=positions.device)
    weight = module.embedding.weight
    return F.embedding(places.clamp(max=len(weight) - 1), weight)  # padding rows exceed the table


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class _Seen:
    """Host memory that a GPU sees at the same address."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # keeps the memory alive

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": tuple(self._tensor.shape),
            "typestr": "<f2",
            "data": (self._tensor.data_ptr(), False),
            "version": 3,
        }
