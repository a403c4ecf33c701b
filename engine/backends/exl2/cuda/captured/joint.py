"""Passes over prompts and a decode step together, as CUDA graphs. A decode step of a small batch
waits for the weights, which a pass over prompts reads too. Used on the engine thread.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from switchyard.engine.backends.exl.loaded import PromptRows
from switchyard.engine.backends.exl2.cuda.captured.graphs import record, seconds
from switchyard.engine.backends.exl2.cuda.captured.inputs import Inputs, Part
from switchyard.engine.backends.exl2.cuda.captured.prompts import PromptPasses, PromptShape
from switchyard.engine.backends.exl2.cuda.captured.sizes import NOISE, Sizes, joint_sizes

LEAST = 64  # tokens of prompts

# The prompts and the decode step; returns the step's logits.
Compute = Callable[[Part, Part], torch.Tensor]


class JointPasses:
    """A joint pass is captured only if it takes less time than two separate passes. For some
    numbers of tokens it takes more, because cuBLAS has slow kernels for them.
    """

    def __init__(
        self, compute: Compute, inputs: Inputs, prompts: PromptPasses, sizes: Sizes
    ) -> None:
        """`inputs`: those of decode steps; `sizes` and `prompts` have been measured."""
        self._compute = compute
        self._inputs = inputs
        self._prompts = prompts
        self._sizes = sizes
        self._graphs: dict[
            tuple[int, PromptShape], torch.cuda.CUDAGraph
        ] = {}  # by rows of the step
        self._seconds: dict[tuple[int, int], float] = {}  # by rows, and tokens of prompts

    def capture(self, pool: Any, logits: Mapping[tuple[int, int], torch.Tensor]) -> int:
        """Capture the graphs. Returns their number. `logits`: where the passes leave their logits,
        by pages in a row and rows.
        """
        rows_of_steps = joint_sizes(self._sizes.used)[::-1]
        for shape in self._prompts.shapes():
            for rows in rows_of_steps if shape.num_tokens >= LEAST else ():
                size = rows, shape.num_tokens
                compute = functools.partial(self._run, rows, shape, logits[shape.width, rows])
                is_new = size not in self._seconds
                if is_new:
                    compute()  # a first use loads kernels, which can't be captured
                elif not self._gains(*size):
                    continue
                graph, _ = record(pool, compute)
                if is_new:
                    self._seconds[size] = seconds(graph, self._inputs.positions.zero_, 2, 2)
                if self._gains(*size):
                    self._graphs[rows, shape] = graph
        return len(self._graphs)

    def _gains(self, rows: int, num_tokens: int, fewer: int = 0) -> bool:
        """Whether the pass takes less time than two separate passes. `fewer`: the number of rows in
        the separate decode step, if it differs.
        """
        step = self._sizes.seconds[fewer or rows]
        apart = step + self._prompts.seconds[num_tokens]
        return self._seconds[rows, num_tokens] < apart * (1 - NOISE)

    def _run(self, rows: int, shape: PromptShape, logits: torch.Tensor) -> None:
        part = self._inputs.part(shape.width, rows)
        logits.copy_(self._compute(self._prompts.part(shape), part))
        part.positions.add_(1)  # usually right for the next pass

    def fit(
        self, prompts: PromptRows, num_rows: int, num_pages: int
    ) -> tuple[int, PromptShape] | None:
        """Returns the fastest pass with room for all, or None if there is none that gains.
        `num_rows`: 0 for any number.
        """
        shape = self._prompts.shape(prompts, num_pages)
        found = [rows for rows, other in self._graphs if other == shape and rows >= num_rows]
        if not found:
            return None
        rows = min(found, key=lambda rows: self._seconds[rows, shape.num_tokens])
        usual = self._sizes.fit(num_rows, 0) if num_rows else rows
        return (rows, shape) if self._gains(rows, shape.num_tokens, usual) else None

    def prepare(
        self, prompts: PromptRows, num_rows: int, num_pages: int
    ) -> tuple[int, int, torch.cuda.CUDAGraph]:
        """Sends the prompts. Returns the pages in a row and the rows of the step that must be sent,
        and the graph to launch.
        """
        found = self.fit(prompts, num_rows, num_pages)
        assert found is not None, "see `fit`"
        rows, shape = found
        self._prompts.send(prompts, shape)
        return shape.width, rows, self._graphs[found]

    def close(self) -> None:
        self._graphs.clear()
