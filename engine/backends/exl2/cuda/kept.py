"""Float16 copies of EXL2 weights, kept beside them for passes of many tokens. Engine thread.

From some number of tokens on exllamav2 unpacks a layer's weights in every pass, which takes longer
than the products themselves. A kept copy spares that. Its products also add up in float32, where
exllamav2's add up in float16.
"""

import types
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from exllamav2 import attn
from exllamav2.attn import ExLlamaV2Attention
from exllamav2.ext import exllamav2_ext as ext_c
from exllamav2.linear import ExLlamaV2Linear
from exllamav2.mlp import ExLlamaV2MLP

NEVER = 2**31  # tokens: no pass has as many


class Kept:
    """Replaces `forward` of modules by one that uses the copies, in passes of `min_tokens` tokens
    or more. The model has the layers that engine/memory/unpacked.py admits.
    """

    def __init__(self, model: Any, cache: Any) -> None:
        self.min_tokens = NEVER
        self.num_bytes = 0
        self._cache = cache
        self._modules: list[Any] = []
        constants = model.get_device_context(model.modules[1].device_idx, scratch=False)
        # exllamav2 holds each angle twice, once for each half of a head.
        half = model.config.head_dim // 2
        self._tables = [
            table[0].reshape(-1, 2 * half)[:, :half].contiguous()
            for table in (constants.cos, constants.sin)
        ]

    @torch.inference_mode()
    def add(self, modules: Iterable[Any]) -> int:
        """Copy the weights of as many modules as there is memory for. Returns their number."""
        for module in modules:
            try:
                self._add(module)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                break
            self._modules.append(module)
        return len(self._modules)

    def _add(self, module: Any) -> None:
        usual, outer = module.forward, None
        match module:
            case ExLlamaV2Attention():
                inner = _merged(module.q_proj, module.k_proj, module.v_proj)
                outer = _merged(module.o_proj)
                forward = self._attention
            case ExLlamaV2MLP():
                inner = _merged(module.gate_proj, module.up_proj)
                outer = _merged(module.down_proj)
                forward = self._feed_forward
            case _:
                inner, forward = _merged(module), self._head

        def choose(own: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            params, loras = kwargs.get("attn_params"), kwargs.get("loras")
            is_plain = isinstance(params, ExLlamaV2Attention.PagedParams) or params is None
            if x.shape[0] * x.shape[1] < self.min_tokens or loras or not is_plain:
                return usual(x, *args, **kwargs)
            return forward(own, x, params, inner, outer)

        module.forward = types.MethodType(choose, module)
        self.num_bytes += inner.num_bytes + (0 if outer is None else outer.num_bytes)

    def close(self) -> None:
        """Release the copies. No graph may use them any more."""
        for module in self._modules:
            del module.forward  # the class's own is left
        self._modules.clear()
        self.num_bytes = 0

    def _attention(self, own: Any, x: torch.Tensor, params: Any, inner: Any, outer: Any) -> Any:
        rows, length, hidden = x.shape
        qkv = inner(_normed(own, x.view(-1, hidden))).view(rows, length, -1, own.head_dim)
        heads, kv_heads = own.num_attention_heads, own.num_key_value_heads
        q, k, v = qkv.split((heads, kv_heads, kv_heads), 2)
        page_size, cache = params.page_size, self._cache
        lengths = params.get_cache_seqlens(own.device_idx)
        table = params.get_block_index(own.device_idx)
        most = params.max_cache_seqlen if cache.q_block else 0
        place = (page_size, lengths, table)
        keys, values = (
            part.view(-1, page_size, kv_heads, own.head_dim)
            for part in cache.get_kv_state(own.layer_idx, rows, 0, most, *place)
        )
        cos, sin = self._tables
        mixed = attn.flash_attn_with_kvcache(
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
        )
        cache.store_kv_state(own.layer_idx, rows, 0, length, *place)
        outer.add_to(x.view(-1, hidden), mixed.view(rows * length, -1))
        return x

    def _feed_forward(self, own: Any, x: torch.Tensor, params: Any, inner: Any, outer: Any) -> Any:
        flat = x.view(-1, x.shape[-1])
        gate, up = inner(_normed(own, flat)).chunk(2, -1)
        outer.add_to(flat, F.silu(gate).mul_(up))
        return x

    def _head(self, own: Any, x: torch.Tensor, params: Any, inner: Any, outer: Any) -> Any:
        return inner(x.view(-1, x.shape[-1])).view(*x.shape[:-1], -1)


class _Matrix:
    """One float16 matrix, (inputs, outputs), perhaps with a bias."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    @property
    def num_bytes(self) -> int:
        return self._weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._bias is None:
            return torch.matmul(x, self._weight)
        return torch.addmm(self._bias, x, self._weight)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> None:
        residual.addmm_(x, self._weight)
        if self._bias is not None:
            residual.add_(self._bias)


def _merged(*linears: ExLlamaV2Linear) -> _Matrix:
    """The matrices side by side."""
    widths = [linear.out_features for linear in linears]
    first = linears[0]
    weight = torch.empty((first.in_features, sum(widths)), dtype=torch.half, device=first.device())
    for part, linear in zip(torch.split(weight, widths, 1), linears, strict=True):
        part.copy_(linear.get_weight_tensor_dq())
    biases = [linear.get_bias_tensor() for linear in linears if linear.has_bias]
    return _Matrix(weight, torch.cat(biases) if biases else None)


def _normed(module: Any, flat: torch.Tensor) -> torch.Tensor:
    norm = module.pre_layernorm
    normed = torch.empty_like(flat)
    ext_c.rms_norm(flat, norm.weight, normed, norm.variance_epsilon)
    return normed


def keepable(model: Any) -> list[Any]:
    """The modules that can have copies, in the order of the model."""
    kinds = (ExLlamaV2Attention, ExLlamaV2MLP, ExLlamaV2Linear)
    return [m for m in model.modules if isinstance(m, kinds) and m.q_handle is not None]
