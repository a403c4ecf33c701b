"""Forward passes of one token a sequence on one GPU: as CUDA graphs where the batch is small.

A small batch's pass takes the host longer to launch than the GPU to compute: some ten kernels for
each layer. A graph is launched as a whole. Engine thread.
"""

import functools
import logging
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from exllamav2.attn import ExLlamaV2Attention
from exllamav2.device import set_device_streams
from exllamav2.embedding import ExLlamaV2Embedding
from exllamav2.ext import exllamav2_ext as ext_c
from exllamav2.layernorm import ExLlamaV2LayerNorm
from exllamav2.linear import ExLlamaV2Linear
from exllamav2.mlp import ExLlamaV2MLP
from exllamav2.rmsnorm import ExLlamaV2RMSNorm
from torch.cuda import check_error

logger = logging.getLogger(__name__)

PADDING_LOGIT = -65504.0  # of rows that pad the vocabulary; exllamav2's value
# Rows that are captured; a smaller batch is filled up. Beyond 32 exllamav2 unpacks the weights
# first, which takes the same time for any number.
GRAPH_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
# Tokens: texts up to these have graphs of their own, with less work in attention, which is divided
# by how long the longest may be.
SHORT = (512, 2048)

MAX_TUNED = 4  # rows up to which exllamav2 measures
NUM_TUNED = 200

PLAIN = (
    ExLlamaV2Attention,
    ExLlamaV2MLP,
    ExLlamaV2LayerNorm,
    ExLlamaV2Linear,
    ExLlamaV2RMSNorm,
)


def can_capture(model: Any, cache: Any) -> bool:
    """Whether what a pass does is the same each time: one device, a cache that isn't quantized (to
    read one depends on its length), no layers of other kinds.
    """
    embedding, *modules = model.modules
    devices = {module.device_idx for module in modules}
    return (
        isinstance(embedding, ExLlamaV2Embedding)
        and all(isinstance(module, PLAIN) for module in modules)
        and len(devices) == 1
        and not model.tp_context
        and cache.q_block == 0
    )


@functools.cache
def _capturing(index: int) -> tuple[torch.cuda.Stream, threading.Lock]:
    """One stream for all captures on a GPU, each in its turn: for every stream that has multiplied
    matrices torch keeps 32 MiB, for ever. Not exllamav2's, on which other models may be at work.
    """
    return torch.cuda.Stream(torch.device("cuda", index)), threading.Lock()  # type: ignore[no-untyped-call]


class Embeddings:
    """Those of a model, read by the GPU from the host's memory, where they stay."""

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
        """As ExLlamaV2Embedding does; (tokens, hidden size)."""
        found = F.embedding(token_ids, self._table)
        if self._is_wide:
            found = found.float()
        return found if self._scale is None else found.mul_(self._scale)

    def close(self) -> None:
        torch.cuda.synchronize(self._table.device)
        check_error(_cuda().cudaHostUnregister(self._address))


def _cuda() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class _Seen:
    """Memory of the host, by the address at which a GPU sees it: the same."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # keeps it

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": tuple(self._tensor.shape),
            "typestr": "<f2",
            "data": (self._tensor.data_ptr(), False),
            "version": 3,
        }


class Passes:
    """Of a model for which `can_capture` holds."""

    def __init__(self, model: Any, cache: Any, page_size: int, max_rows: int) -> None:
        """`max_rows`: sequences at once, at most."""
        self._model = model
        self._cache = cache
        self._page_size = page_size
        self._index: int = model.modules[1].device_idx
        self._device = torch.device("cuda", self._index)
        num_pages = -(-model.config.max_seq_len // page_size)
        self._token_ids = torch.zeros(max_rows, dtype=torch.long, device=self._device)
        self._positions = torch.zeros(max_rows, dtype=torch.int32, device=self._device)
        self._widths = sorted({num_pages, *(min(n // page_size, num_pages) for n in SHORT)})
        self._pages = {
            width: torch.zeros((max_rows, width), dtype=torch.int32, device=self._device)
            for width in self._widths
        }
        self._known_positions: list[int] = []  # what the device has
        self._known_pages: dict[int, np.ndarray] = {}  # by width
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._sizes = sorted({min(rows, max_rows) for rows in GRAPH_ROWS})
        # Last: it is to be closed once it is there.
        self._embeddings = Embeddings(model.modules[0], self._device)

    def capture(self) -> None:
        """While nothing of the cache is in use: page 0 is written to."""
        stream, lock = _capturing(self._index)
        pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(self._device)
        with lock, torch.inference_mode(), torch.cuda.stream(stream):
            for rows in self._sizes:
                self._tune(rows)
            stream.synchronize()
            for width in self._widths:
                for rows in reversed(self._sizes):  # the largest first: others fit in its memory
                    graph = torch.cuda.CUDAGraph()
                    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                    try:
                        logits = self._compute(rows, self._pages[width][:rows])
                    finally:
                        graph.capture_end()
                    self._graphs[width, rows] = graph, logits
        torch.cuda.synchronize(self._device)
        logger.info("%d graphs of decode steps captured", len(self._graphs))

    def _tune(self, rows: int) -> None:
        """Compute until exllamav2 has chosen its kernels: it does so by taking the time of the
        first 200 products of each shape, for which it waits, and that can't be captured.
        """
        head, hidden_size = self._model.modules[-1], self._model.config.hidden_size
        hidden = torch.zeros((rows, 1, hidden_size), dtype=torch.half, device=self._device)
        num_passes = 1 if rows > MAX_TUNED else NUM_TUNED // self._model.config.num_hidden_layers
        for _ in range(num_passes + 1):
            self._positions.zero_()
            self._compute(rows, self._pages[self._widths[0]][:rows])
        for _ in range(NUM_TUNED if rows <= MAX_TUNED else 0):
            head.forward(hidden)

    def run(
        self, token_ids: torch.Tensor, positions: Sequence[int], pages: np.ndarray
    ) -> torch.Tensor:
        """Logits, (rows, 1, padded vocabulary), that the next run may overwrite. `token_ids`,
        (rows,), wherever they are; `positions`: of them; `pages`: of the cache, (rows, pages),
        int32.
        """
        set_device_streams()
        rows = len(token_ids)
        width = next(w for w in self._widths if w >= pages.shape[1])
        size = next(s for s in self._sizes if s >= rows)
        fill = size - rows  # rows that fill it up do what the first does
        self._token_ids[:rows].copy_(token_ids, non_blocking=True)
        if fill:
            self._token_ids[rows:size] = self._token_ids[0]
        self._send_positions([*positions, *[positions[0]] * fill])
        self._send_pages(np.vstack((pages, pages[:1].repeat(fill, 0))), width)
        graph, logits = self._graphs[width, size]
        graph.replay()
        return logits[:rows]

    def close(self) -> None:
        """The model can be unloaded then."""
        self._graphs.clear()
        self._embeddings.close()

    def _send_positions(self, positions: list[int]) -> None:
        """Unless they are what the last pass has made of them."""
        if positions != self._known_positions:
            sent = torch.tensor(positions, dtype=torch.int32)
            self._positions[: len(positions)].copy_(sent, non_blocking=True)
        self._known_positions = [position + 1 for position in positions]

    def _send_pages(self, pages: np.ndarray, width: int) -> None:
        known = self._known_pages.get(width)
        rows, used = pages.shape
        if known is not None and len(known) >= rows and np.array_equal(known[:rows, :used], pages):
            return
        table = np.zeros((rows, width), dtype=np.int32)
        table[:, :used] = pages
        self._known_pages[width] = table
        self._pages[width][:rows].copy_(torch.from_numpy(table), non_blocking=True)

    def _compute(self, rows: int, pages: torch.Tensor) -> torch.Tensor:
        """As ExLlamaV2.forward_chunk does, with all inputs on the device; logits of `rows`."""
        params = ExLlamaV2Attention.PagedParams(
            batch_size=rows,
            block_index=torch.zeros((2, 1), dtype=torch.int32),  # of two: never one piece of cache
            cache_seqlens=torch.zeros(rows, dtype=torch.int32),
            max_cache_seqlen=0,
            page_size=self._page_size,
            q_len=1,
        )
        params.block_index = pages
        params.cache_seqlens = self._positions[:rows]
        x = self._embeddings(self._token_ids[:rows])[:, None]
        for module in self._model.modules[1:]:
            x = module.forward(x, cache=self._cache, attn_params=params, past_len=0, loras=None)
        config = self._model.config
        if config.final_logit_softcapping:
            ext_c.softcap_(x, config.final_logit_softcapping)
        padding = self._model.modules[-1].padding
        if padding > 0:
            x[:, :, -padding:] = PADDING_LOGIT
        self._positions[:rows] += 1  # for the next pass, as a rule
        return x
