"""Forward passes of short prompts, or chunks of prompts, as CUDA graphs. Used on the engine thread.

Launching such a pass kernel by kernel takes the host 7 to 15 ms on an H200, during which no stream
gets a token. Launching a graph takes 0.25 ms.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from switchyard.engine.backends.exl.loaded import PromptRows
from switchyard.engine.backends.exl2.cuda.captured.graphs import record, seconds
from switchyard.engine.backends.exl2.cuda.captured.inputs import Part

# Captured numbers of rows and of tokens per row, up to a total number of tokens. Unpacking the
# weights dominates the time, so some padding does not matter.
ROWS = (1, 2, 4, 8, 16)
LENGTHS = (32, 64, 128, 256, 384, 512)
MAX_TOKENS = 512
MAX_SEVERAL = 2048  # tokens including their context; longer prompts are computed one by one

Compute = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class PromptShape(NamedTuple):
    width: int  # pages
    rows: int
    length: int  # tokens in a row

    @property
    def num_tokens(self) -> int:
        return self.rows * self.length


class PromptPasses:
    """`compute` is called with token ids, the starts of the rows and their pages, all on the
    device.
    """

    def __init__(
        self,
        compute: Compute,
        widths: Sequence[int],
        page_size: int,
        max_tokens: int,
        device: torch.device,
    ) -> None:
        """`widths`: the numbers of pages per row for which there are graphs. `max_tokens`: the
        maximum number of tokens in one pass.
        """
        self._max_tokens = min(MAX_TOKENS, max_tokens)
        self._compute = compute
        self._widths = widths
        self._page_size = page_size
        self._token_ids = torch.zeros(MAX_TOKENS, dtype=torch.long, device=device)
        self._starts = torch.zeros(ROWS[-1], dtype=torch.int32, device=device)
        self._pages = {
            width: torch.zeros((ROWS[-1], width), dtype=torch.int32, device=device)
            for width in widths
        }
        self._graphs: dict[PromptShape, torch.cuda.CUDAGraph] = {}
        self.seconds: dict[int, float] = {}  # of a pass without context, by its number of tokens

    def capture(self, pool: Any) -> int:
        """Capture the graphs. Returns their number."""
        self._starts.zero_()  # at a later capture, they are still the last prompt's
        for pages in self._pages.values():
            pages.zero_()
        self.seconds.clear()
        for shape in self.shapes():
            compute = functools.partial(self._compute, *self.part(shape))
            compute()  # a first use loads kernels, which can't be captured
            self._graphs[shape], _ = record(pool, compute)
            if shape.num_tokens not in self.seconds:
                self.seconds[shape.num_tokens] = seconds(
                    self._graphs[shape], self._starts.zero_, 2, 2
                )
        return len(self._graphs)

    def part(self, shape: PromptShape) -> Part:
        """The inputs of a pass of this shape."""
        width, rows, length = shape
        return Part(
            self._token_ids[: rows * length], self._starts[:rows], self._pages[width][:rows]
        )

    def shapes(self) -> list[PromptShape]:
        """The shapes, largest first, because smaller graphs fit into the memory of the largest."""
        return [
            PromptShape(width, rows, length)
            for width in self._widths
            for length in reversed(LENGTHS)
            for rows in reversed(ROWS)
            if rows * length <= self._max_tokens
            and length <= width * self._page_size
            and (rows == 1 or width * self._page_size <= MAX_SEVERAL)
        ]

    def fit(self, length: int) -> int:
        """Returns the shortest captured row length that has room for `length` tokens, or `length`
        itself if there is none.
        """
        return next((fitting for fitting in LENGTHS if fitting >= length), length)

    def shape(self, prompts: PromptRows, num_pages: int = 1) -> PromptShape:
        """Returns the smallest shape with room for these prompts and for `num_pages` pages. There
        may be no graph of that shape.
        """
        num_rows, length = prompts.token_ids.shape
        most = max(num_pages, prompts.pages.shape[1])
        rows = next((rows for rows in ROWS if rows >= num_rows), 0)
        width = next((width for width in self._widths if width >= most), 0)
        return PromptShape(width, rows, length)

    def run(self, prompts: PromptRows) -> bool:
        """Compute keys and values. Returns whether a graph fits."""
        shape = self.shape(prompts)
        graph = self._graphs.get(shape)
        if graph is None:
            return False
        self.send(prompts, shape)
        graph.replay()
        return True

    def send(self, prompts: PromptRows, shape: PromptShape) -> None:
        """Send the inputs of a pass."""
        (token_ids, starts, pages), (width, rows, length) = prompts, shape
        num_rows = len(token_ids)
        order = [*range(num_rows), *[0] * (rows - num_rows)]  # padding repeats the first row
        table = np.zeros((rows, width), dtype=np.int32)
        table[:, : pages.shape[1]] = pages[order]
        begins = torch.tensor([starts[i] for i in order], dtype=torch.int32)
        self._token_ids[: rows * length].copy_(token_ids[order].flatten(), non_blocking=True)
        self._starts[:rows].copy_(begins, non_blocking=True)
        self._pages[width][:rows].copy_(torch.from_numpy(table), non_blocking=True)

    def close(self) -> None:
        self._graphs.clear()
