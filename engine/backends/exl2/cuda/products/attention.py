"""Attention over a paged cache with flash-attn, and the norm before it, for layers whose matrix
products this package computes. All layers are plain in the sense of engine/memory/unpacked.py.
"""

import functools
from typing import Any

import torch
from exllamav2 import attn
from exllamav2.attn import ExLlamaV2Attention
from exllamav2.ext import exllamav2_ext as ext_c

# flash-attn divides a row's context among several blocks until there are two for each
# multiprocessor, and a second kernel combines their results. With this many blocks for each
# multiprocessor, decode steps are faster without that, on contexts of up to 512 tokens and others.
SHORT, BUSY_IF_SHORT, BUSY = 512, 0.4, 0.7


class JointParams:
    """The parameters of several passes whose tokens go through the layers one after another, as one
    row. Each pass writes its keys and values before the next one reads any.
    """

    def __init__(self, *passes: tuple[Any, int]) -> None:
        """`passes`: exllamav2's parameters of each pass, and the number of tokens in its rows."""
        self.passes = passes


class CachedAttention:
    def __init__(self, model: Any, cache: Any) -> None:
        self._cache = cache
        device = model.modules[1].device_idx
        constants = model.get_device_context(device, scratch=False)
        # exllamav2 holds each angle twice, once for each half of a head.
        half = model.config.head_dim // 2
        self._tables = [
            table[0].reshape(-1, 2 * half)[:, :half].contiguous()
            for table in (constants.cos, constants.sin)
        ]

    def __call__(self, own: Any, qkv: torch.Tensor, params: Any) -> torch.Tensor:
        """Returns the results of the heads, (tokens, width), before the last product. `own`:
        exllamav2's module; `qkv`: (rows, tokens, heads, head size), or (1, tokens, …) for
        `JointParams`; the keys and values in it are written to the cache.
        """
        if not isinstance(params, JointParams):
            return self._attend(own, qkv, params)
        sizes = [one.batch_size * length for one, length in params.passes]
        parts = zip(torch.split(qkv[0], sizes), params.passes, strict=True)
        return torch.cat(
            [
                self._attend(own, part.view(-1, length, *part.shape[1:]), one)
                for part, (one, length) in parts
            ]
        )

    def _attend(self, own: Any, qkv: torch.Tensor, params: Any) -> torch.Tensor:
        rows, length, *_ = qkv.shape
        heads, kv_heads = own.num_attention_heads, own.num_key_value_heads
        q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], 2)
        page_size, cache = params.page_size, self._cache
        lengths = params.get_cache_seqlens(own.device_idx)
        table = params.get_block_index(own.device_idx)
        most = params.max_cache_seqlen if cache.q_block else 0
        place = (page_size, lengths, table)
        keys, values = (
            part.view(-1, page_size, kv_heads, own.head_dim)
            for part in cache.get_kv_state(own.layer_idx, rows, 0, most, *place)
        )
        busy = BUSY_IF_SHORT if table.shape[1] * page_size <= SHORT else BUSY
        is_whole = length == 1 and rows * kv_heads >= busy * multiprocessors(qkv.device)
        cos, sin = self._tables
        mixed: torch.Tensor = attn.flash_attn_with_kvcache(
            q=q,
            k=k,
            v=v,
            k_cache=keys,
            v_cache=values,
            rotary_cos=cos,
            rotary_sin=sin,
            rotary_interleaved=False,
            cache_seqlens=lengths,
            block_table=table,
            causal=True,
            softmax_scale=own.scaling,
            num_splits=1 if is_whole else 0,  # 0: flash-attn decides
        )
        cache.store_kv_state(own.layer_idx, rows, 0, length, *place)
        return mixed.reshape(rows * length, -1)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def paged_params(pages: torch.Tensor, positions: torch.Tensor, length: int, page_size: int) -> Any:
    """Returns the parameters of a pass whose rows have `length` tokens, starting at `positions`.
    All tensors are on the device.
    """
    rows = len(positions)
    params = ExLlamaV2Attention.PagedParams(
        batch_size=rows,
        block_index=torch.zeros((2, 1), dtype=torch.int32),  # two columns: never contiguous
        cache_seqlens=torch.zeros(rows, dtype=torch.int32),
        max_cache_seqlen=1,  # above 0, so a quantized cache is read; the GPU knows the length
        page_size=page_size,
        q_len=length,
    )
    params.block_index = pages
    params.cache_seqlens = positions
    return params


def normed(module: Any, flat: torch.Tensor) -> torch.Tensor:
    """Returns `flat`, (tokens, hidden size), normalized by the module's own norm."""
    norm = module.pre_layernorm
    out = torch.empty_like(flat)
    ext_c.rms_norm(flat, norm.weight, out, norm.variance_epsilon)
    return out
