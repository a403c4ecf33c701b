"""Layers that use our own matrix products instead of exllamav2's. Used on the engine thread.

Each of exllamav2's matrices is freed as soon as ours is laid out, so there are never two copies of
the whole model.
"""

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from exllamav2.attn import ExLlamaV2Attention
from exllamav2.ext import exllamav2_ext as ext_c
from exllamav2.linear import ExLlamaV2Linear
from exllamav2.mlp import ExLlamaV2MLP

from switchyard.engine.backends.exl2.cuda.products.attention import CachedAttention, normed
from switchyard.engine.backends.exl2.cuda.products.kernels import Kernels
from switchyard.engine.backends.exl2.cuda.products.packing import (
    TILE,
    Matrix,
    Packed,
    pack,
    read_groups,
)
from switchyard.engine.backends.exl2.cuda.products.tilings import MAX_ROWS, is_staged

LARGE = 2**26  # bytes; larger matrices wait on the host while they are laid out

MOST_UNUSED = 2**28  # bytes


@dataclass(frozen=True, slots=True)
class PackedWeights:
    packed: Packed
    bias: torch.Tensor | None


class OwnProducts:
    """Replaces the `forward` of modules, and the `get_weight_tensor_dq` of their matrices. The
    model may have only layers that engine/memory/unpacked.py admits, and matrices that `pack`
    accepts.
    """

    def __init__(self, model: Any, cache: Any, kernels: Kernels) -> None:
        self._kernels = kernels
        self._attend = CachedAttention(model, cache)
        # exllamav2's own scratch space, which its matrices used
        self._space: torch.Tensor = model.get_device_context(model.modules[1].device_idx).scratch
        self._replaced: list[Any] = []

    @torch.inference_mode()
    def replace(self, modules: Sequence[Any]) -> None:
        for module in modules:
            match module:
                case ExLlamaV2Attention():
                    self._replace_attention(module)
                case ExLlamaV2MLP():
                    self._replace_feed_forward(module)
                case ExLlamaV2Linear():
                    self._replace_head(module)
            if torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > MOST_UNUSED:
                torch.cuda.empty_cache()  # freed memory may belong to another stream
        torch.cuda.empty_cache()

    def close(self) -> None:
        """Release the matrices. Graphs must no longer use the matrices, and afterwards the model
        can only be unloaded.
        """
        for module in self._replaced:
            for name in ("forward", "get_weight_tensor_dq"):
                module.__dict__.pop(name, None)
        self._replaced.clear()

    def _replace_attention(self, module: Any) -> None:
        ext_c.free_q_attn(module.q_handle)
        module.q_handle = None
        inner = [self._take(m) for m in (module.q_proj, module.k_proj, module.v_proj)]
        outer = self._take(module.o_proj)
        orders = distinct([one.packed for one in inner])
        width = sum(one.packed.columns for one in inner)

        def forward(own: Any, x: torch.Tensor, *, attn_params: Any, **_: Any) -> torch.Tensor:
            rows, length, hidden = x.shape
            flat = x.view(-1, hidden)
            qkv = torch.empty((len(flat), width), dtype=torch.half, device=x.device)
            outs = torch.split(qkv, [one.packed.columns for one in inner], 1)
            self._project(own, flat, inner, orders, outs)
            heads = qkv.view(rows, length, -1, own.head_dim)
            mixed = self._attend(own, heads, attn_params)
            is_natural = is_staged(*mixed.shape)
            if len(flat) <= MAX_ROWS and not is_natural:
                mixed = self._kernels.gather(mixed, outer.packed.order)
            self._add(flat, mixed, outer, is_natural or len(flat) > MAX_ROWS)
            return x

        self._install(module, forward)

    def _replace_feed_forward(self, module: Any) -> None:
        ext_c.free_q_mlp(module.q_handle)
        module.q_handle = None
        outer = self._take(module.down_proj)
        # In the order of the next product's rows, so that its inputs need no reordering.
        order = outer.packed.order.long()
        inner = [self._take(m, order) for m in (module.gate_proj, module.up_proj)]
        orders = distinct([one.packed for one in inner])
        width = inner[0].packed.columns
        has_bias = any(one.bias is not None for one in inner)

        def forward(own: Any, x: torch.Tensor, **_: Any) -> torch.Tensor:
            flat = x.view(-1, x.shape[-1])
            if len(flat) <= MAX_ROWS and not has_bias:
                inputs, options = self._normed(own, flat, orders, len(inner))
                gated = self._kernels.gate([one.packed for one in inner], inputs, **options)
            else:
                both = torch.empty((2, len(flat), width), dtype=torch.half, device=x.device)
                self._project(own, flat, inner, orders, both.unbind())
                gated = self._kernels.activate(*both)
            self._add(flat, gated, outer, is_natural=False)
            return x

        self._install(module, forward)

    def _replace_head(self, module: Any) -> None:
        weights = self._take(module)

        def forward(own: Any, x: torch.Tensor, **_: Any) -> torch.Tensor:
            flat = x.view(-1, x.shape[-1])
            packed = weights.packed
            out = torch.empty((len(flat), packed.columns), dtype=torch.half, device=x.device)
            if len(flat) <= MAX_ROWS:
                is_natural = is_staged(*flat.shape)
                ordered = flat if is_natural else self._kernels.gather(flat, packed.order)
                self._kernels.multiply([packed], [ordered], [out], is_natural=is_natural)
            else:
                for columns, part in self._unpacked(packed):
                    torch.mm(flat, part, out=out[:, columns])
            out = out[:, : packed.width]
            if weights.bias is not None:
                out = out + weights.bias
            return out.view(*x.shape[:-1], -1)

        self._install(module, forward)

    def _install(self, module: Any, forward: Callable[..., torch.Tensor]) -> None:
        module.forward = types.MethodType(forward, module)
        self._replaced.append(module)

    def _take(self, linear: Any, columns: torch.Tensor | None = None) -> PackedWeights:
        """Returns a matrix in our layout, and frees exllamav2's."""
        matrix, bias = read(linear), linear.q_tensors.get("bias")
        ext_c.free_q_matrix(linear.q_handle)
        linear.q_handle = linear.q_tensors = None
        linear.fp16_bias = bias  # where `get_bias_tensor` then looks for it
        if matrix.words.nbytes > LARGE:
            matrix = replace(matrix, words=matrix.words.cpu())
        weights = PackedWeights(pack(matrix, columns), bias)
        if bias is not None and columns is not None:
            weights = replace(weights, bias=bias[columns])
        back = None if columns is None else torch.argsort(columns)

        def unpacked() -> torch.Tensor:
            packed = weights.packed
            shape = (packed.rows, packed.columns)
            out = torch.empty(shape, dtype=torch.half, device=packed.words.device)
            self._kernels.unpack(packed, out.view(-1))
            return out[:, : packed.width] if back is None else out[:, back]

        linear.get_weight_tensor_dq = unpacked
        self._replaced.append(linear)
        return weights

    def _project(
        self,
        own: Any,
        flat: torch.Tensor,
        inner: Sequence[PackedWeights],
        orders: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
    ) -> None:
        """Compute several products of the norm of `flat`."""
        matrices = [one.packed for one in inner]
        if len(flat) <= MAX_ROWS:
            inputs, options = self._normed(own, flat, orders, len(inner))
            self._kernels.multiply(matrices, inputs, outs, **options)
        else:
            x = normed(own, flat)
            for packed, out in zip(matrices, outs, strict=True):
                for columns, part in self._unpacked(packed):
                    torch.mm(x, part, out=out[:, columns])
        for one, out in zip(inner, outs, strict=True):
            if one.bias is not None:
                out.add_(one.bias)

    def _normed(
        self, own: Any, flat: torch.Tensor, orders: Sequence[torch.Tensor], number: int
    ) -> tuple[list[torch.Tensor], dict[str, Any]]:
        """Returns the input of each of `number` matrices, and the options of their product."""
        norm = (own.pre_layernorm.weight, own.pre_layernorm.variance_epsilon)
        if is_staged(*flat.shape):
            return [flat] * number, {"norm": norm, "is_natural": True}
        found = self._kernels.normalize(flat, *norm, orders)
        return found * (number // len(found)), {}

    def _add(
        self, residual: torch.Tensor, x: torch.Tensor, outer: PackedWeights, is_natural: bool
    ) -> None:
        if len(x) <= MAX_ROWS:
            self._kernels.multiply([outer.packed], [x], [residual], add=True, is_natural=is_natural)
        else:
            for columns, part in self._unpacked(outer.packed, is_natural):
                residual[:, columns].addmm_(x, part)
        if outer.bias is not None:
            residual.add_(outer.bias)

    def _unpacked(
        self, packed: Packed, is_natural: bool = True
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yields columns and their float16 weights, as many at a time as there is space for."""
        step = self._space.numel() // packed.rows // TILE
        for begin in range(0, len(packed.words), step):
            end = min(begin + step, len(packed.words))
            part = of_tiles(packed, begin, end)
            weights = self._kernels.unpack(part, self._space, is_natural)
            yield slice(begin * TILE, end * TILE), weights


def of_tiles(packed: Packed, begin: int, end: int) -> Packed:
    if end - begin == len(packed.words):
        return packed
    scales = packed.scales[:, begin * TILE // 8 : end * TILE // 8].contiguous()
    width = (end - begin) * TILE
    return replace(packed, words=packed.words[begin:end], scales=scales, width=width)


def distinct(several: Sequence[Packed]) -> list[torch.Tensor]:
    """Returns each matrix's order of rows, or only one order if all are the same."""
    first, *others = [packed.order for packed in several]
    return [first] if all(torch.equal(first, one) for one in others) else [first, *others]


def read(linear: Any) -> Matrix:
    """Reads one of exllamav2's matrices. Its `q_handle` must exist. The last matrix of a
    feed-forward block has no order, because exllamav2 has moved the columns of the other matrices
    instead.
    """
    tensors = linear.q_tensors
    natural = torch.arange(linear.in_features, device=tensors["q_weight"].device)
    return Matrix(
        tensors["q_weight"],
        tensors["q_scale"],
        tensors["q_scale_max"],
        read_groups(tensors["q_groups"].tolist(), len(tensors["q_weight"])),
        tensors["q_perm"].long() & 0xFFFF if "q_perm" in tensors else natural,
    )
