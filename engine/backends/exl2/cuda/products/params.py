"""The parameters of kernels, as weights.cuh, multiply.cu, unpack.cu and between.cu declare them."""

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch

from switchyard.engine.backends.exl2.cuda.products.packing import CHUNK, TILE, Packed

MAX_MATRICES = 3  # in one launch
MAX_RUNS = 6
HALF = 2  # bytes

_u32, _pointer = ctypes.c_uint32, ctypes.c_void_p


class Tiling(NamedTuple):
    """How a product is computed: the macros of multiply.cu, and `blocks`, the number of blocks on
    each multiprocessor. A negative `blocks` means at most that many blocks, chosen so that the
    tiles are divided evenly.
    """

    TT: int
    WN: int
    WK: int
    STAGES: int
    blocks: int
    STAGED: int = 0

    @property
    def macros(self) -> dict[str, int]:
        macros = self._asdict()
        del macros["blocks"]
        return macros

    @property
    def threads(self) -> int:
        return self.WN * self.WK * 32

    @property
    def space(self) -> int:
        """The bytes of workspace for each block, which holds two tiles of sums."""
        return 2 * self.TT * 8 * self.WN * TILE * 4


class CRun(ctypes.Structure):
    _fields_ = [(name, _u32) for name in ("start", "bits", "prefix", "group", "shift")]


class CMatrix(ctypes.Structure):
    _fields_ = [
        *((name, _pointer) for name in ("w", "scale", "smax", "x", "out", "perm")),
        *((name, _u32) for name in ("n", "chunks", "cost", "base", "tiles", "tile0")),
        *((name, _u32) for name in ("num_runs", "ldx", "ldo", "add")),
        ("runs", CRun * MAX_RUNS),
    ]


class Multiply(ctypes.Structure):
    _fields_ = [
        ("m", CMatrix * MAX_MATRICES),
        ("ws", _pointer),
        ("counters", _pointer),
        *((name, _u32) for name in ("num", "total", "rows", "slot", "pair")),
        ("eps", ctypes.c_float),
        ("weight", _pointer),
    ]


class Unpack(ctypes.Structure):
    _fields_ = [("m", CMatrix), ("perm", _pointer)]


class Norm(ctypes.Structure):
    _fields_ = [
        ("x", _pointer),
        ("weight", _pointer),
        ("perm", _pointer * MAX_MATRICES),
        ("y", _pointer * MAX_MATRICES),
        *((name, _u32) for name in ("n", "num")),
        ("eps", ctypes.c_float),
    ]


class Gather(ctypes.Structure):
    _fields_ = [*((name, _pointer) for name in ("x", "perm", "y")), ("n", _u32)]


class Activate(ctypes.Structure):
    _fields_ = [*((name, _pointer) for name in ("gate", "up", "y")), ("n", _u32)]


def multiply(
    tiling: Tiling,
    matrices: Sequence[Packed],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    add: bool = False,
    pair: bool = False,
    norm: tuple[torch.Tensor, float] | None = None,
) -> Multiply:
    """Returns the kernel's parameters, except the workspace and the counters. For each matrix,
    `inputs` contains a tensor of (rows, rows of the matrix), in the matrix's order, and `outputs` a
    tensor of (rows, padded columns of the matrix). `add`: whether to add the products to the
    outputs. `pair`: whether to write only silu(first product) * second product, to the first
    output. With `tiling.STAGED`, the columns of `inputs` are in their natural order, and `norm` is
    None or the weight and epsilon of an RMSNorm, whose results are multiplied.
    """
    params = Multiply(num=len(matrices), rows=len(inputs[0]), pair=pair)
    if norm is not None:
        params.weight, params.eps = norm[0].data_ptr(), norm[1]
    base = first_tile = 0
    each = zip(params.m, matrices, inputs, outputs, strict=False)
    for to, packed, x, out in each:
        _describe(to, packed, out)
        to.x, to.ldx, to.add = x.data_ptr(), x.stride(0) * HALF, add
        to.perm = packed.order.data_ptr()
        to.base, to.tile0, to.tiles = base, first_tile, -(-packed.columns // (TILE * tiling.WN))
        base, first_tile = base + to.tiles * packed.cost, first_tile + to.tiles
    params.total = base
    most = max(run.bits for packed in matrices for run in packed.runs)
    params.slot = 256 * most + 64  # a chunk of a tile, and its scales
    return params


def unpack(packed: Packed, out: torch.Tensor, order: torch.Tensor | None) -> Unpack:
    params = Unpack(perm=None if order is None else order.data_ptr())
    _describe(params.m, packed, out)
    return params


def _describe(to: CMatrix, packed: Packed, out: torch.Tensor) -> None:
    to.w, to.scale, to.smax = (t.data_ptr() for t in (packed.words, packed.scales, packed.most))
    to.out, to.ldo = out.data_ptr(), out.stride(0) * HALF
    to.n, to.chunks, to.cost = packed.columns, packed.rows // CHUNK, packed.cost
    to.num_runs = len(packed.runs)
    for place, run in zip(to.runs, packed.runs, strict=False):
        place.start, place.bits, place.prefix, place.group, place.shift = run


def workspace_bytes(params: Multiply, tiling: Tiling, blocks: int) -> int:
    """Returns the number of bytes for the sums of tiles that several blocks compute."""
    if params.pair:
        return tiling.space // 2 * (blocks + num_tiles(params))
    return tiling.space * blocks


def num_tiles(params: Multiply) -> int:
    return sum(int(m.tiles) for m in params.m[: params.num])


def shared_bytes(params: Multiply, tiling: Tiling) -> int:
    """Returns the number of bytes of shared memory for a block. This memory first holds the ring of
    chunks, and later the sums of the warps. Staged rows of x are stored next to them.
    """
    stage = tiling.WN * int(params.slot) + (0 if tiling.STAGED else tiling.TT * 512)
    sums = tiling.WK * tiling.TT * 8 * tiling.WN * TILE * 4
    size = max(tiling.WK * tiling.STAGES * stage, sums)
    if tiling.STAGED:
        rows, halves = int(params.rows), int(params.m[0].chunks) * CHUNK
        size += HALF * halves * rows
        if params.weight:
            size += HALF * halves + 4 * rows * tiling.WN * tiling.WK
    return size


def fitting(params: Multiply, tiling: Tiling, most_shared: int) -> Tiling:
    """Returns the tiling with as many stages as fit into shared memory, but at least two."""
    while tiling.STAGES > 2 and shared_bytes(params, tiling) > most_shared:
        tiling = tiling._replace(STAGES=tiling.STAGES - 1)
    return tiling


def num_blocks(params: Multiply, tiling: Tiling, multiprocessors: int, resident: int) -> int:
    """`resident`: the number of blocks that a multiprocessor can hold."""
    room = multiprocessors * min(resident, abs(tiling.blocks))
    tiles = num_tiles(params)
    if tiling.blocks < 0:
        room = room // tiles * tiles if room >= tiles else -(-tiles // -(-tiles // room))
    chunks = sum(int(m.tiles) * int(m.chunks) for m in params.m[: params.num])
    return max(1, min(room, chunks // tiling.WK, int(params.total) // 8))  # a chunk for each warp
