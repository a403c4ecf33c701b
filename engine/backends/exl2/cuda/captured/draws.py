"""Draws among a few candidate tokens, recorded as CUDA graphs that read the logits of decode steps.
Used on the engine thread.

Without a graph, the host launches about twenty small kernels for such a draw, which takes longer
than the pass of a small model.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from switchyard.engine.backends.exl2.cuda.captured.graphs import record
from switchyard.engine.backends.sampling.candidates import RowSettings, choose
from switchyard.engine.backends.sampling.draw import coded

FIRST = RowSettings(1.0, 1.0, 1.0, 0.0, 0.0)  # of rows that pad a batch


class CapturedDraws:
    def __init__(self, most: int, device: torch.device) -> None:
        """`most`: the maximum number of rows."""
        self._columns = torch.tensor([FIRST] * most, dtype=torch.float64, device=device)
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}

    def capture(self, pool: Any, key: Hashable, logits: torch.Tensor) -> None:
        """`logits`: (rows, vocabulary), filled by the graph that `key` names."""

        def compute() -> torch.Tensor:
            return coded(*choose(self._columns[: len(logits)], logits))

        compute()  # a first use loads kernels, which can't be captured
        self._graphs[key] = record(pool, compute)

    def run(self, key: Hashable, settings: Sequence[RowSettings]) -> torch.Tensor:
        """Returns a coded token for each of `settings`. The tokens are valid until the next draw
        with this key.
        """
        columns = torch.tensor(settings, dtype=torch.float64)
        self._columns[: len(settings)].copy_(columns, non_blocking=True)
        graph, token_ids = self._graphs[key]
        graph.replay()
        return token_ids[: len(settings)]

    def close(self) -> None:
        self._graphs.clear()
