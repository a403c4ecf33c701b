"""Compiles and loads the kernels for one GPU, and launches them with tensors. Used on the engine
thread.
"""

import ctypes
from collections.abc import Sequence

import torch

from switchyard.engine.backends.exl2.cuda.products import driver, params, tilings
from switchyard.engine.backends.exl2.cuda.products.nvrtc import Code
from switchyard.engine.backends.exl2.cuda.products.packing import CHUNK, TILE, Packed
from switchyard.engine.backends.exl2.cuda.products.params import Tiling
from switchyard.engine.backends.exl2.cuda.products.tilings import FEW_ROWS, TILINGS

NORM_THREADS, THREADS, UNPACK_CHUNKS = 512, 256, 4
OVERLAPPING = (9, 0)  # lowest compute capability with overlapping kernels
MAX_TILES = 2**15  # of a launch

Norm = tuple[torch.Tensor, float]  # weight and epsilon


class Kernels:
    """The kernels for the GPU with this index. Raises Unavailable."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        properties = torch.cuda.get_device_properties(index)
        self.multiprocessors: int = properties.multi_processor_count
        capability = (properties.major, properties.minor)
        overlaps = capability >= OVERLAPPING
        self._pdl = {"PDL": int(overlaps)}
        self._code = Code(properties.name, capability, driver.version())
        self._multiply: dict[Tiling, driver.Kernel] = {}
        every = [tiling for pair in TILINGS.values() for tiling in pair]
        every += [tiling._replace(STAGED=1) for tiling in TILINGS[FEW_ROWS]]
        with torch.cuda.device(index):
            torch.zeros(1, device=self._device)  # creates the context
            self._most_shared = driver.most_shared(index)
            sources = [("between.cu", self._pdl), ("unpack.cu", {})]
            sources += [("multiply.cu", tiling.macros | self._pdl) for tiling in every]
            between, unpack, *_ = self._code.read_all(sources)
            self._normalize, self._gather, self._activate = driver.load(
                between, "normalize", "gather", "activate", overlaps=overlaps
            )
            [self._unpack] = driver.load(unpack, "unpack", overlaps=False)
        most = max(abs(t.blocks) * t.space for t in every)
        self._space = torch.empty(
            most * self.multiprocessors, dtype=torch.uint8, device=self._device
        )
        self._counters = torch.zeros(MAX_TILES, dtype=torch.int32, device=self._device)

    @property
    def num_bytes(self) -> int:
        return self._space.nbytes + self._counters.nbytes

    def multiply(
        self,
        matrices: Sequence[Packed],
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        add: bool = False,
        norm: Norm | None = None,
        is_natural: bool = False,
        tiling: Tiling | None = None,
    ) -> None:
        """`inputs`: a tensor for each matrix. Its columns have the order of the matrix's rows or,
        with `is_natural`, their natural order. `add`: whether to add the products to the outputs.
        `norm`: the norm of the inputs, only with `is_natural`.
        """
        tiling = tiling or self._chosen(matrices, len(inputs[0]))
        tiling = tiling._replace(STAGED=int(is_natural))
        found = params.multiply(tiling, matrices, inputs, outputs, add=add, norm=norm)
        self._multiply_by(found, tiling)

    def gate(
        self,
        matrices: Sequence[Packed],
        inputs: Sequence[torch.Tensor],
        norm: Norm | None = None,
        is_natural: bool = False,
    ) -> torch.Tensor:
        """Returns silu(first product) * second product, for two matrices of the same size."""
        rows, columns = len(inputs[0]), matrices[0].columns
        both = torch.empty((2, rows, columns), dtype=torch.half, device=inputs[0].device)
        if rows <= tilings.PAIRED_ROWS:
            out = both[0]
            tiling = self._chosen(matrices, rows)._replace(STAGED=int(is_natural))
            found = params.multiply(tiling, matrices, inputs, [out, out], pair=True, norm=norm)
            if self._multiply_by(found, tiling):
                return out
        self.multiply(matrices, inputs, both.unbind(), norm=norm, is_natural=is_natural)
        return self.activate(*both)

    def _chosen(self, matrices: Sequence[Packed], rows: int) -> Tiling:
        tiles = sum(packed.columns // TILE for packed in matrices)
        return tilings.choose(rows, tiles, self.multiprocessors)

    def _multiply_by(self, found: params.Multiply, tiling: Tiling) -> bool:
        """Compute the products, unless the workspace is too small. Returns whether they were
        computed.
        """
        found.ws, found.counters = self._space.data_ptr(), self._counters.data_ptr()
        tiling = params.fitting(found, tiling, self._most_shared)
        function, shared = self._function(tiling), params.shared_bytes(found, tiling)
        resident = function.resident_blocks(tiling.threads, shared)
        if not resident:
            raise driver.Unavailable(f"the GPU has less shared memory than {shared} bytes")
        blocks = params.num_blocks(found, tiling, self.multiprocessors, resident)
        if params.workspace_bytes(found, tiling, blocks) > self._space.nbytes:
            return False
        self._launch(function, (blocks, 1), tiling.threads, shared, found)
        return True

    def _launch(
        self,
        kernel: driver.Kernel,
        grid: tuple[int, int],
        threads: int,
        shared: int,
        found: ctypes.Structure,
    ) -> None:
        with torch.cuda.device(self._device):
            stream = torch.cuda.current_stream().cuda_stream
            kernel.launch(grid, threads, shared, found, stream)

    def _function(self, tiling: Tiling) -> driver.Kernel:
        """Returns the function. It is loaded at first use, during the comparison with exllamav2's
        products.
        """
        key = tiling._replace(blocks=0)
        if key not in self._multiply:
            code = self._code.read("multiply.cu", tiling.macros | self._pdl)
            overlaps = bool(self._pdl["PDL"])
            [self._multiply[key]] = driver.load(code, "multiply", overlaps=overlaps)
        return self._multiply[key]

    def normalize(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, orders: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Returns the RMSNorm of each row of `x`, once for each of the column orders."""
        rows, size = x.shape
        outputs = [torch.empty_like(x) for _ in orders]
        found = params.Norm(
            x=x.data_ptr(), weight=weight.data_ptr(), n=size, num=len(orders), eps=eps
        )
        for i, (order, out) in enumerate(zip(orders, outputs, strict=True)):
            found.perm[i], found.y[i] = order.data_ptr(), out.data_ptr()
        self._launch(self._normalize, (rows, 1), NORM_THREADS, params.HALF * size + 64, found)
        return outputs

    def gather(self, x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        rows, size = x.shape
        out = torch.empty_like(x)
        found = params.Gather(x.data_ptr(), order.data_ptr(), out.data_ptr(), size)
        self._launch(self._gather, (-(-size // 2 // THREADS), rows), THREADS, 0, found)
        return out

    def activate(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        """Returns silu(gate) * up."""
        out, words = torch.empty_like(gate), gate.numel() // 2
        found = params.Activate(gate.data_ptr(), up.data_ptr(), out.data_ptr(), words)
        self._launch(self._activate, (-(-words // THREADS), 1), THREADS, 0, found)
        return out

    def unpack(self, packed: Packed, space: torch.Tensor, is_natural: bool = True) -> torch.Tensor:
        """Returns the matrix in float16, (rows, columns), stored in `space`. `is_natural`: whether
        the rows are in their natural order.
        """
        out = space[: packed.rows * packed.columns].view(packed.rows, packed.columns)
        found = params.unpack(packed, out, packed.order if is_natural else None)
        grid = packed.columns // TILE, -(-(packed.rows // CHUNK) // UNPACK_CHUNKS)
        self._launch(self._unpack, grid, UNPACK_CHUNKS * 32, 0, found)
        return out
