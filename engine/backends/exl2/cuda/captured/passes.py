"""Forward passes on one GPU as CUDA graphs, for decode steps and short prompts.

Each layer has about ten kernels, and the host takes longer to launch them than the GPU takes to
compute them. A graph needs only one launch. Used on the engine thread.
"""

import functools
import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from switchyard.engine.backends.exl.loaded import PromptRows
from switchyard.engine.backends.exl2.cuda.captured.draws import CapturedDraws
from switchyard.engine.backends.exl2.cuda.captured.graphs import (
    NUM_TIMED,
    capturing,
    record,
    seconds,
)
from switchyard.engine.backends.exl2.cuda.captured.inputs import Inputs
from switchyard.engine.backends.exl2.cuda.captured.joint import Compute, JointPasses
from switchyard.engine.backends.exl2.cuda.captured.prompts import PromptPasses
from switchyard.engine.backends.exl2.cuda.captured.sizes import Sizes, least_faster
from switchyard.engine.backends.exl2.cuda.kept import NEVER
from switchyard.engine.backends.sampling.candidates import RowSettings
from switchyard.engine.memory.lengths import SHORT_CONTEXTS, graph_rows
from switchyard.engine.stats import KeptWeights

logger = logging.getLogger(__name__)


class Layers(Protocol):
    """A model's layers on one GPU. All inputs are on that GPU, so that a graph can capture the
    layers.
    """

    device: torch.device
    max_tokens: int  # in a captured pass of prompts

    def begin(self) -> None:
        """Called before a graph is launched."""

    def prepare(self, token_ids: torch.Tensor, pages: torch.Tensor) -> None:
        """Run passes until all kernels have been chosen, loaded and compiled. Page 0 is
        overwritten. `token_ids`: (rows,); `pages`: (rows, pages), int32.
        """

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, pages: torch.Tensor
    ) -> torch.Tensor:
        """Returns logits, (rows, 1, padded vocabulary), for one token of each row. `positions`:
        (rows,), int32.
        """

    def compute(self, token_ids: torch.Tensor, positions: torch.Tensor, pages: torch.Tensor) -> Any:
        """Write keys and values of `token_ids`, which are divided into equal parts, one for each
        row. Each part begins at its row's position.
        """

    def have(self, token_ids: torch.Tensor) -> bool:
        """Whether there is an embedding for each token. The tokens are on the host."""

    def close(self) -> None: ...


class Unpacked(Protocol):
    """Weights in float16, which the layers use in passes of `min_tokens` tokens or more."""

    min_tokens: int
    num_bytes: int  # kept between passes

    def close(self) -> None: ...


class CapturedPasses:
    """The graphs of a model."""

    def __init__(
        self,
        layers: Layers,
        max_seq_len: int,
        page_size: int,
        max_rows: int,
        unpacked: Unpacked | None = None,
        joint_logits: Compute | None = None,
    ) -> None:
        """`max_seq_len`: the maximum number of tokens in a row; `max_rows`: the maximum number of
        sequences in a pass. `layers` and `unpacked` are closed together with these passes.
        `joint_logits` computes prompts, its first argument, and a decode step in one pass, and
        returns the logits of the step.
        """
        self._unpacked = unpacked
        self._layers = layers
        self._page_size = page_size
        self._device = layers.device
        num_pages = -(-max_seq_len // page_size)
        self._max_rows = max_rows
        self.num_rows = 0
        most = graph_rows(max_rows)[-1]
        self._widths = sorted(
            {num_pages, *(min(n // page_size, num_pages) for n in SHORT_CONTEXTS)}
        )
        self._inputs = Inputs(most, self._widths, self._device)
        self._graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._joint_logits = joint_logits
        self._joint: JointPasses | None = None
        self._draws = CapturedDraws(most, self._device)
        self._last: tuple[int, int] | None = None  # the graph of the last run
        self._sizes = Sizes({most: 0.0}, max_rows)  # until measured
        self._prompts = PromptPasses(
            layers.compute, self._widths, page_size, layers.max_tokens, self._device
        )

    def capture(self, vocab_size: int) -> None:
        """Capture and measure the graphs. The cache must be unused, because page 0 is
        overwritten.
        """
        stream, lock = capturing(self._device.index)
        self._inputs.forget()
        pool = torch.cuda.graph_pool_handle()
        torch.cuda.synchronize(self._device)
        self._last = None
        self._draws.close()
        self._graphs.clear()
        self._close_joint()
        if self._unpacked is not None:
            self._unpacked.min_tokens = NEVER
        with lock, torch.inference_mode(), torch.cuda.stream(stream):
            tried = graph_rows(self._max_rows)
            self._inputs.positions.zero_()
            for rows in tried:
                pages = self._inputs.pages[self._widths[0]][:rows]
                self._layers.prepare(self._inputs.token_ids[:rows], pages)
            stream.synchronize()
            first, *others = self._widths
            times = self._try(pool, first, tried)
            if self._unpacked is not None:
                times = self._try_unpacked(self._unpacked, pool, first, times)
            self._sizes = Sizes(times, self._max_rows)
            for rows in {*tried} - {*self._sizes.used}:
                del self._graphs[first, rows]
            for width in others:
                self._record(pool, width, self._sizes.used)
            self._sizes.seconds_a_token = self._seconds_a_token()
            for key, (_, logits) in self._graphs.items():
                self._draws.capture(pool, key, logits[:, 0, :vocab_size])
            num_prompts = self._prompts.capture(pool)
            num_joint = self._capture_joint(pool)
        torch.cuda.synchronize(self._device)
        self._inputs.forget()
        logger.info(
            "captured %d graphs of decode steps, %d of prompts and %d of both; milliseconds by"
            " number of rows: %s",
            len(self._graphs),
            num_prompts,
            num_joint,
            ", ".join(f"{rows}: {1000 * time:.2f}" for rows, time in times.items()),
        )

    def _capture_joint(self, pool: Any) -> int:
        """Returns the number of graphs."""
        if self._joint_logits is None:
            return 0
        self._joint = JointPasses(self._joint_logits, self._inputs, self._prompts, self._sizes)
        logits = {key: logits for key, (_, logits) in self._graphs.items()}
        return self._joint.capture(pool, logits)

    def _try(self, pool: Any, width: int, sizes: Sequence[int]) -> dict[int, float]:
        """Records graphs of these sizes. Returns the seconds that a pass takes, by size."""
        self._record(pool, width, sizes)
        return {rows: self._seconds(width, rows, 0) for rows in sizes}

    def _try_unpacked(
        self, unpacked: Unpacked, pool: Any, width: int, usual: dict[int, float]
    ) -> dict[int, float]:
        """Records graphs that use unpacked weights, for sizes at which they are faster than
        `usual`. Prompts with more tokens always use unpacked weights. Returns the seconds that the
        remaining graphs take, by size.
        """
        others, unpacked.min_tokens = dict(self._graphs), 1
        for rows in usual:  # a first use loads kernels, which can't be captured
            self._decode(rows, self._inputs.pages[width][:rows])
        times = self._try(pool, width, [*usual])
        unpacked.min_tokens = least_faster(usual, times) or max(usual) + 1
        slower = [rows for rows in usual if rows < unpacked.min_tokens]
        self._graphs |= {(width, rows): others[width, rows] for rows in slower}
        logger.info("passes of %d tokens or more use unpacked weights", unpacked.min_tokens)
        return times | {rows: usual[rows] for rows in slower}

    def _give_up_unpacked(self) -> None:
        unpacked, self._unpacked = self._unpacked, None
        if unpacked is not None:
            unpacked.close()

    def shed(self) -> bool:
        """If there are kept weights, release them and all graphs. Returns whether there were any;
        if so, call `capture` next.
        """
        there_are_any = self.kept.num_bytes > 0
        if there_are_any:
            self._release()
            torch.cuda.empty_cache()
        return there_are_any

    @property
    def kept(self) -> KeptWeights:
        unpacked = self._unpacked
        if unpacked is None or not unpacked.num_bytes:
            return KeptWeights()
        return KeptWeights(unpacked.num_bytes, unpacked.min_tokens)

    def _record(self, pool: Any, width: int, sizes: Sequence[int]) -> None:
        for rows in reversed(sizes):  # the largest first: smaller graphs fit in its memory
            decode = functools.partial(self._decode, rows, self._inputs.pages[width][:rows])
            self._graphs[width, rows] = record(pool, decode)

    def _seconds(self, width: int, rows: int, position: int) -> float:
        """Returns the seconds that a pass takes. Overwrites page 0."""
        graph, _ = self._graphs[width, rows]
        return seconds(graph, lambda: self._inputs.positions.fill_(position))

    def _seconds_a_token(self) -> float:
        """The seconds that attention takes for each token of a row's context."""
        short = SHORT_CONTEXTS[-1] // self._page_size
        width: int = max(w for w in self._widths if w == self._widths[0] or w <= short)
        rows, position = self._sizes.used[-1], width * self._page_size - NUM_TIMED
        more = self._seconds(width, rows, position) - self._seconds(width, rows, 0)
        return max(more, 0.0) / rows / position

    def run(
        self,
        token_ids: torch.Tensor,
        positions: Sequence[int],
        pages: np.ndarray,
        prompts: PromptRows | None = None,
    ) -> torch.Tensor:
        """Returns logits, (rows, 1, padded vocabulary), which are valid until the next run.

        `token_ids`: (rows,), on the host or the device; `positions`: the tokens' positions;
        `pages`: cache pages, (rows, pages), int32. Also computes the keys and values of `prompts`;
        see `can_join`. Raises IndexError for tokens on the host that have no embedding. Tokens on
        the device aren't checked, because they were drawn there.
        """
        if token_ids.device.type == "cpu" and not self._layers.have(token_ids):
            raise IndexError("a token id has no embedding in the model")
        self._layers.begin()
        rows = len(token_ids)
        if prompts is None:
            width = next(w for w in self._widths if w >= pages.shape[1])
            size = self._sizes.fit(rows, min(positions))
            graph, _ = self._graphs[width, size]
        else:
            assert self._joint is not None, "see can_join"
            width, size, graph = self._joint.prepare(prompts, *pages.shape)
        self.num_rows = size
        self._inputs.send(token_ids, positions, pages, width, size - rows)
        self._last = width, size
        graph.replay()
        return self._graphs[self._last][1][:rows]

    def can_join(self, prompts: PromptRows, num_rows: int = 0, num_pages: int = 1) -> bool:
        """Whether computing these prompts in a `run` saves time. `num_rows`: 0 for any number of
        rows; `num_pages`: the maximum number of pages of a row.
        """
        if self._joint is None or self._joint.fit(prompts, num_rows, num_pages) is None:
            return False
        return self._layers.have(prompts.token_ids)

    def draw(self, settings: Sequence[RowSettings], logits: torch.Tensor) -> torch.Tensor | None:
        """Draws from the `logits` that the last `run` returned. Returns coded tokens, (rows,),
        which are valid until the next draw, or None for any other logits.
        """
        if self._last is None or logits.data_ptr() != self._graphs[self._last][1].data_ptr():
            return None
        return self._draws.run(self._last, settings)

    def fit(self, length: int) -> int:
        """Returns the shortest row length of the prompt passes that has room for `length` tokens,
        or `length` itself if there is none.
        """
        return self._prompts.fit(length)

    def compute(self, prompts: PromptRows) -> bool:
        """Compute keys and values. Returns whether they were computed."""
        if not self._layers.have(prompts.token_ids):
            return False  # on the GPU, such a token would cost the device
        self._layers.begin()
        return self._prompts.run(prompts)

    def close(self) -> None:
        """Release the graphs. After that, the model can be unloaded."""
        self._release()
        self._layers.close()

    def _release(self) -> None:
        self._last = None
        self._draws.close()
        self._graphs.clear()
        self._close_joint()
        self._prompts.close()
        self._give_up_unpacked()

    def _decode(self, rows: int, pages: torch.Tensor) -> torch.Tensor:
        """Returns the logits of the first `rows` rows. All inputs are on the device."""
        positions = self._inputs.positions[:rows]
        logits = self._layers.logits(self._inputs.token_ids[:rows], positions, pages)
        positions += 1  # usually right for the next pass
        return logits

    def _close_joint(self) -> None:
        if self._joint is not None:
            self._joint.close()
            self._joint = None
