"""Compares our matrix products with exllamav2's, both before and after replacing them. Used on the
engine thread.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from exllamav2.ext import exllamav2_ext as ext_c

from switchyard.engine.backends.exl2.cuda.products.attention import paged_params
from switchyard.engine.backends.exl2.cuda.products.kernels import Kernels
from switchyard.engine.backends.exl2.cuda.products.layers import read
from switchyard.engine.backends.exl2.cuda.products.packing import TILE, find_runs, pack
from switchyard.engine.backends.exl2.cuda.products.tilings import (
    FEW_ROWS,
    STAGED_ROWS,
    TILINGS,
    is_staged,
)

MOST = 1e-3  # maximum relative error of a product
# For a whole pass. Sums in float16 give exllamav2 itself an error of up to 0.04 with 32 layers.
MOST_OF_PASS = 0.2
COLUMNS = 2048  # columns of a matrix to compare
NUM_ROWS, NUM_STEPS = 2, 2


class ProductsRefused(RuntimeError):
    """Our products can't replace exllamav2's."""


@torch.inference_mode()
def compare_products(linears: Sequence[Any], kernels: Kernels, space: torch.Tensor) -> None:
    """Compares exllamav2's products with ours, for all numbers of rows, for one matrix of each
    shape and mix of bit widths. Raises ProductsRefused. `space`: memory for an unpacked matrix.
    """
    seen = set()
    for linear in linears:
        matrix = read(linear)
        key = (matrix.words.shape, len(matrix.order), find_runs(matrix.groups))
        if key not in seen:
            seen.add(key)
            _compare_product(linear, kernels, space)


def _compare_product(linear: Any, kernels: Kernels, space: torch.Tensor) -> None:
    matrix = read(linear)
    has_room = len(space) // len(matrix.order) // TILE * TILE
    width = min(matrix.words.shape[1], COLUMNS, has_room)
    packed = pack(
        replace(matrix, words=matrix.words[:, :width], scales=matrix.scales[:, : width // 8])
    )
    shape = (linear.in_features, linear.out_features)
    if shape[0] * shape[1] <= len(space):
        weights = space[: shape[0] * shape[1]].view(shape)
    else:
        weights = torch.empty(shape, dtype=torch.half, device=space.device)
    ext_c.reconstruct(linear.q_handle, weights)
    weights = weights[:, :width].clone()
    ours = kernels.unpack(packed, space)[:, :width]
    if not torch.equal(ours, weights):
        raise ProductsRefused(f"unpacked weights of {linear.key} differ from exllamav2's")
    exact = weights.float()
    for rows, tilings in TILINGS.items():
        generator = torch.Generator(space.device).manual_seed(rows)
        x = torch.randn((rows, shape[0]), device=space.device, generator=generator).half()
        ordered, expected = kernels.gather(x, packed.order), x.float() @ exact
        for tiling in tilings:
            out = torch.empty((rows, packed.columns), dtype=torch.half, device=space.device)
            kernels.multiply([packed], [ordered], [out], tiling=tiling)
            _check(linear, out[:, :width], expected)
            for num in range(1, STAGED_ROWS + 1) if rows == FEW_ROWS else ():
                if is_staged(num, shape[0]):
                    few = out[:num]
                    few.zero_()
                    kernels.multiply([packed], [x[:num]], [few], is_natural=True, tiling=tiling)
                    _check(linear, few[:, :width], expected[:num])


def _check(linear: Any, out: torch.Tensor, expected: torch.Tensor) -> None:
    error = _error(out, expected)
    if not error <= MOST:
        raise ProductsRefused(
            f"a product of {len(out)} rows with {linear.key} has a relative error of {error:.1e}"
        )


def _error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


@torch.inference_mode()
def whole_pass(model: Any, cache: Any, page_size: int, device: torch.device) -> torch.Tensor:
    """Returns the logits after a few tokens, in float32. Overwrites the first pages of the
    cache.
    """
    rows = min(NUM_ROWS, cache.max_seq_len // page_size)
    generator = torch.Generator().manual_seed(0)
    size = (rows, NUM_STEPS)
    token_ids = torch.randint(0, model.config.vocab_size, size, generator=generator)
    pages = torch.arange(rows, dtype=torch.int32, device=device)[:, None]
    embedded = model.modules[0].forward(token_ids).to(device)
    for step in range(NUM_STEPS):
        positions = torch.full((rows,), step, dtype=torch.int32, device=device)
        params = paged_params(pages, positions, 1, page_size)
        x = embedded[:, step : step + 1].clone()
        for module in model.modules[1:]:
            x = module.forward(x, cache=cache, attn_params=params, past_len=0, loras=None)
    logits: torch.Tensor = x.float()
    return logits


def compare_passes(ours: torch.Tensor, exllamav2s: torch.Tensor) -> None:
    """Compares the logits that two calls to `whole_pass` returned. Raises ProductsRefused."""
    if not torch.isfinite(exllamav2s).all():
        return  # a residual beyond float16: there is nothing to compare with
    error = _error(ours, exllamav2s)
    if not error <= MOST_OF_PASS:
        raise ProductsRefused(
            f"the logits of a whole pass differ from exllamav2's: the relative error is {error:.1e}"
        )
