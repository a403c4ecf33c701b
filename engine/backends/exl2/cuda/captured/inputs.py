"""The inputs of decode steps on a GPU, at fixed addresses, which graphs need. Used on the engine
thread.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch


class Part(NamedTuple):
    """The inputs of a pass on the device."""

    token_ids: torch.Tensor  # one row's after another
    positions: torch.Tensor  # (rows,), int32; of each row's first token
    pages: torch.Tensor  # (rows, pages), int32


class Inputs:
    """Each row is a sequence. Data that the device already holds is not sent again."""

    def __init__(self, most: int, widths: Sequence[int], device: torch.device) -> None:
        """`most`: the maximum number of rows; `widths`: the numbers of pages per row for which
        there are graphs.
        """
        self.token_ids = torch.zeros(most, dtype=torch.long, device=device)
        self.positions = torch.zeros(most, dtype=torch.int32, device=device)
        self.pages = {
            width: torch.zeros((most, width), dtype=torch.int32, device=device) for width in widths
        }
        self._known_positions: list[int] = []  # as the device holds them
        self._known_pages: dict[int, np.ndarray] = {}  # likewise, by width

    def part(self, width: int, rows: int) -> Part:
        return Part(self.token_ids[:rows], self.positions[:rows], self.pages[width][:rows])

    def forget(self) -> None:
        """Call this after the copies on the device have been changed."""
        self._known_positions = []
        self._known_pages.clear()

    def send(
        self,
        token_ids: torch.Tensor,
        positions: Sequence[int],
        pages: np.ndarray,
        width: int,
        fill: int,
    ) -> None:
        """Send the inputs for a graph of this width. The graph adds 1 to the positions. `fill`
        padding rows repeat the row with the shortest context.
        """
        rows, shortest = len(token_ids), positions.index(min(positions))
        self.token_ids[:rows].copy_(token_ids, non_blocking=True)
        if fill:
            self.token_ids[rows : rows + fill] = self.token_ids[shortest]
        self._send_positions([*positions, *[positions[shortest]] * fill])
        self._send_pages(np.vstack((pages, pages[shortest : shortest + 1].repeat(fill, 0))), width)

    def _send_positions(self, positions: list[int]) -> None:
        """Send positions, unless the last pass has left exactly these positions on the device."""
        if positions != self._known_positions:
            sent = torch.tensor(positions, dtype=torch.int32)
            self.positions[: len(positions)].copy_(sent, non_blocking=True)
        self._known_positions = [position + 1 for position in positions]

    def _send_pages(self, pages: np.ndarray, width: int) -> None:
        known = self._known_pages.get(width)
        rows, used = pages.shape
        if known is not None and len(known) >= rows and np.array_equal(known[:rows, :used], pages):
            return
        table = np.zeros((rows, width), dtype=np.int32)
        table[:, :used] = pages
        self._known_pages[width] = table
        self.pages[width][:rows].copy_(torch.from_numpy(table), non_blocking=True)
