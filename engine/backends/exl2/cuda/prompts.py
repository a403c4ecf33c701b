"""Forward passes of short prompts, or chunks of prompts, as CUDA graphs. Used on the engine thread.

Launching such a pass kernel by kernel takes the host 7 to 15 ms on an H200, during which no stream
gets a token. Launching a graph takes 0.25 ms.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from switchyard.engine.backends.exl2.cuda.graphs import record

# Captured numbers of rows and of tokens per row, up to a total number of tokens. Unpacking the
# weights dominates the time, so some padding does not matter.
ROWS = (1, 2, 4, 8, 16)
LENGTHS = (32, 64, 128, 256, 384, 512)
MAX_TOKENS = 512
MAX_SEVERAL = 2048  # tokens including their context; longer prompts are computed one by one

Compute = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


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
        self._graphs: dict[tuple[int, int, int], torch.cuda.CUDAGraph] = {}

    def capture(self, pool: Any) -> int:
        """Capture the graphs. Returns their number."""
        self._starts.zero_()  # at a later capture, they are still the last prompt's
        for pages in self._pages.values():
            pages.zero_()
        for width, rows, length in self._shapes():
            compute = functools.partial(
                self._compute,
                self._token_ids[: rows * length],
                self._starts[:rows],
                self._pages[width][:rows],
            )
            compute()  # a first use loads kernels, which can't be captured
            self._graphs[width, rows, length], _ = record(pool, compute)
        return len(self._graphs)

    def _shapes(self) -> list[tuple[int, int, int]]:
        """The shapes, largest first, because smaller graphs fit into the memory of the largest."""
        return [
            (width, rows, length)
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

    def run(self, token_ids: torch.Tensor, starts: Sequence[int], pages: np.ndarray) -> bool:
        """Compute keys and values of `token_ids`, (rows, tokens), which are on the host. Returns
        whether a graph fits. `starts`: the position of each row's first token; `pages`: cache
        pages, (rows, pages), int32.
        """
        num_rows, length = token_ids.shape
        rows = next((rows for rows in ROWS if rows >= num_rows), 0)
        width = next((width for width in self._widths if width >= pages.shape[1]), 0)
        graph = self._graphs.get((width, rows, length))
        if graph is None:
            return False
        order = [*range(num_rows), *[0] * (rows - num_rows)]  # padding repeats the first row
        table = np.zeros((rows, width), dtype=np.int32)
        table[:, : pages.shape[1]] = pages[order]
        begins = torch.tensor([starts[i] for i in order], dtype=torch.int32)
        self._token_ids[: rows * length].copy_(token_ids[order].flatten(), non_blocking=True)
        self._starts[:rows].copy_(begins, non_blocking=True)
        self._pages[width][:rows].copy_(torch.from_numpy(table), non_blocking=True)
        graph.replay()
        return True

    def close(self) -> None:
        self._graphs.clear()
