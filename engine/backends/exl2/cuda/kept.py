"""Float16 copies of EXL2 weights, kept in addition to the weights, for passes of many tokens. Used
on the engine thread.

Above a certain number of tokens, exllamav2 unpacks a layer's weights in every pass, which takes
longer than the products themselves. A kept copy avoids this work. In addition, products with a copy
are summed in float32, whereas exllamav2 sums in float16.
"""

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from exllamav2.attn import ExLlamaV2Attention
from exllamav2.linear import ExLlamaV2Linear
from exllamav2.mlp import ExLlamaV2MLP

from switchyard.engine.backends.exl2.cuda.products.attention import (
    CachedAttention,
    JointParams,
    normed,
)

NEVER = 2**31  # tokens: no pass is that large


class Kept:
    """Replaces the `forward` of modules with one that uses the copies in passes of `min_tokens`
    tokens or more. The model may have only layers that engine/memory/unpacked.py admits.
    """

    def __init__(
        self,
        model: Any,
        cache: Any,
        activate: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        """`activate`: computes silu(gate) * up, for which torch needs two kernels."""
        self.min_tokens = NEVER
        self.num_bytes = 0
        self._usual: list[tuple[Any, Any]] = []  # modules, and their original methods
        self._attend = CachedAttention(model, cache)
        self._activate = activate or _activate

    @torch.inference_mode()
    def add(self, modules: Iterable[Any]) -> int:
        """Copy the weights of as many modules as memory allows. Returns the number of modules
        copied.
        """
        for module in modules:
            try:
                self._add(module)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                break
        return len(self._usual)

    def _add(self, module: Any) -> None:
        usual, outer = module.forward, None
        inner: _Matrix | _Pair
        match module:
            case ExLlamaV2Attention():
                inner = _merged(module.q_proj, module.k_proj, module.v_proj)
                outer = _merged(module.o_proj)
                forward = self._attention
            case ExLlamaV2MLP():
                inner = _paired(module.gate_proj, module.up_proj)
                outer = _merged(module.down_proj)
                forward = self._feed_forward
            case _:
                inner, forward = _merged(module), self._head

        def choose(own: Any, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            params, loras = kwargs.get("attn_params"), kwargs.get("loras")
            plain = (ExLlamaV2Attention.PagedParams, JointParams)
            is_plain = isinstance(params, plain) or params is None
            if x.shape[0] * x.shape[1] < self.min_tokens or loras or not is_plain:
                return usual(x, *args, **kwargs)
            return forward(own, x, params, inner, outer)

        self._usual.append((module, usual))
        module.forward = types.MethodType(choose, module)
        self.num_bytes += inner.num_bytes + (0 if outer is None else outer.num_bytes)

    def close(self) -> None:
        """Release the copies. Graphs must no longer use them."""
        for module, usual in self._usual:
            module.forward = usual
        self._usual.clear()
        self.num_bytes = 0

    def _attention(self, own: Any, x: torch.Tensor, params: Any, inner: Any, outer: Any) -> Any:
        rows, length, hidden = x.shape
        flat = x.view(-1, hidden)
        qkv = inner(normed(own, flat)).view(rows, length, -1, own.head_dim)
        outer.add_to(flat, self._attend(own, qkv, params))
        return x

    def _feed_forward(self, own: Any, x: torch.Tensor, params: Any, inner: Any, outer: Any) -> Any:
        flat = x.view(-1, x.shape[-1])
        gate, up = inner(normed(own, flat))
        outer.add_to(flat, self._activate(gate, up))
        return x

    def _head(self, own: Any, x: torch.Tensor, params: Any, inner: Any, outer: Any) -> Any:
        return inner(x.view(-1, x.shape[-1])).view(*x.shape[:-1], -1)


class _Matrix:
    """One float16 matrix, (inputs, outputs), with or without a bias."""

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
    """Returns the matrices side by side."""
    widths = [linear.out_features for linear in linears]
    first = linears[0]
    weight = torch.empty((first.in_features, sum(widths)), dtype=torch.half, device=first.device())
    for part, linear in zip(torch.split(weight, widths, 1), linears, strict=True):
        part.copy_(linear.get_weight_tensor_dq())
    biases = [linear.get_bias_tensor() for linear in linears if linear.has_bias]
    return _Matrix(weight, torch.cat(biases) if biases else None)


class _Pair:
    """Two float16 matrices of the same size, (2, inputs, outputs), with or without biases, (2, 1,
    outputs). Their products are contiguous, so the next kernel reads them faster than halves of
    wider rows.
    """

    def __init__(self, weights: torch.Tensor, biases: torch.Tensor | None) -> None:
        self._weights, self._biases = weights, biases

    @property
    def num_bytes(self) -> int:
        return self._weights.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        both = x.expand(2, -1, -1)
        if self._biases is None:
            return torch.bmm(both, self._weights)
        return torch.baddbmm(self._biases, both, self._weights)


def _paired(first: ExLlamaV2Linear, second: ExLlamaV2Linear) -> _Pair:
    shape = (2, first.in_features, first.out_features)
    weights = torch.empty(shape, dtype=torch.half, device=first.device())
    for part, linear in zip(weights, (first, second), strict=True):
        part.copy_(linear.get_weight_tensor_dq())
    biases = [linear.get_bias_tensor() for linear in (first, second) if linear.has_bias]
    return _Pair(weights, torch.stack(biases)[:, None] if biases else None)


def _activate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate, inplace=True).mul_(up)


def multiplying(model: Any) -> list[Any]:
    """Returns the modules with quantized matrices, in the model's order."""
    kinds = (ExLlamaV2Attention, ExLlamaV2MLP, ExLlamaV2Linear)
    return [m for m in model.modules if isinstance(m, kinds) and m.q_handle is not None]
