"""The library's generator, extended to compute the prompts of several jobs in one pass."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from exllamav2.ext import exllamav2_ext as ext_c
from exllamav2.generator import ExLlamaV2DynamicGenerator

from switchyard.engine.backends.exl.faults import explain
from switchyard.engine.backends.exl.loaded import Passes, PromptRows
from switchyard.engine.backends.exl.results import Result
from switchyard.engine.backends.exl2.prompt import PromptJob
from switchyard.engine.schedule.budget import Budget

# Minimum number of common tokens for a copy, unless all are common. Fewer tokens are faster to
# compute with the rest than to copy.
MIN_ALIKE = 32


class PromptGenerator(ExLlamaV2DynamicGenerator):  # type: ignore[misc]  # exllamav2 is untyped
    """For `PromptJob`s only."""

    def __init__(self, device: torch.device, passes: Passes | None, **settings: Any) -> None:
        """`settings`: settings of the library's generator."""
        super().__init__(**settings, max_sampling_threads=1, filter_background_eval=False)
        self.budget = Budget(self.max_chunk_size, self.max_chunk_size)  # replaced by the backend
        self.is_overlapping = device.type != "cpu"  # the device works asynchronously
        self._device = device
        self._passes = passes
        # Noted as computed, but not launched yet: the next pass may compute them beside its rows.
        self._waiting: PromptRows | None = None

    def reset_page_table(self) -> None:
        super().reset_page_table()
        # The token ids of all pages in one tensor, for one search over all.
        ids = torch.zeros((len(self.all_pages), self.page_size), dtype=torch.long)
        self._page_ids = ids.numpy()
        for i, page in enumerate(self.all_pages):
            page.sequence = ids[i : i + 1]

    def defrag_cache(self) -> None:
        """Does nothing. Each page is found through a table, so its location in memory doesn't
        matter (docs/decisions.md). The library's kernel also fails with a misaligned address if
        the cache is quantized and the width of keys is not a multiple of 128.
        """

    def find_alike(self, own: Any, ids: torch.Tensor) -> tuple[Any | None, int]:
        """Returns the page that follows the same tokens as `own` and has the longest common
        beginning with `ids`, and the length of that beginning. The page is None if no page is worth
        copying from.
        """
        best, length = None, max(min(MIN_ALIKE, ids.shape[-1]) - 1, 1)
        if ids.shape[-1] < 2:  # not worth it for one token
            return best, length
        for page in self._pages_beginning_with(*ids[0, :2].tolist()):
            if page.kv_position <= length or page.prev_hash != own.prev_hash or page is own:
                continue
            match = ext_c.count_match(page.sequence, ids, page.kv_position)
            if match > length:
                best, length = page, match
        return best, length

    def _pages_beginning_with(self, first: int, second: int) -> list[Any]:
        """The pages that begin, or used to begin, with these two tokens."""
        begins = (self._page_ids[:, 0] == first) & (self._page_ids[:, 1] == second)
        return [self.all_pages[i] for i in np.flatnonzero(begins)]

    @property
    def is_any_decoding(self) -> bool:
        return any(job.is_decoding for job in self.active_jobs)

    def most_prompt_tokens(self) -> int:
        """The maximum number of prompt tokens in the next iteration."""
        return self.budget.tokens if self.is_any_decoding else self.max_chunk_size

    def _prefill(self, results: list[Result]) -> None:
        """Compute a chunk of each unfinished prompt, in the order in which the jobs started, as far
        as the iteration's budget allows. The end of one prompt can thus share the budget with the
        start of the next.
        """
        newcomers = [job for job in self.active_jobs if not (job.is_decoding and job.is_scored)]
        computed: set[PromptJob] = set()
        if self.is_overlapping:
            left = [job for job in newcomers if job.plan()]
            left.sort(key=lambda job: job.num_next, reverse=True)
            while left:
                length = self._fit(left[0].num_next)
                starts = {job: job.row_start(length) for job in left}
                fitting = [(job, start) for job, start in starts.items() if start is not None]
                rows = dict(fitting[: max(self.max_chunk_size // length, 1)])
                left = [job for job in left[1:] if job not in rows]
                if rows:
                    computed |= self._compute_prompts(rows, length, results)
        for job in newcomers:
            if job not in computed:
                job.give_share_back()
                job.prefill(results)

    def _compute_prompts(
        self, rows: Mapping[PromptJob, int], length: int, results: list[Result]
    ) -> set[PromptJob]:
        """Compute the next chunk of each job in one pass, in rows of `length` tokens that begin at
        the given starts. Later passes overwrite the padding. Returns the jobs whose chunks were
        computed.
        """
        jobs, starts = list(rows), list(rows.values())
        token_ids = torch.zeros((len(jobs), length), dtype=torch.long)
        for row, job, start in zip(token_ids, jobs, starts, strict=True):
            ids = job.ids_from(start)
            row[: ids.shape[1]] = ids
            job.will_write(start, start + length)
        pages = np.zeros((len(jobs), (max(starts) + length - 1) // self.page_size + 1), np.int32)
        for row, job in zip(pages, jobs, strict=True):
            indices = [page.page_index for page in job.sequences[0].allocated_pages[: len(row)]]
            row[: len(indices)] = indices
        try:
            self._forward_prompts(PromptRows(token_ids, starts, pages))
        except BaseException as error:
            if len(jobs) == 1:
                jobs[0].fail(error, results)
                return set(jobs)
            if explain(error) is not error:
                raise
            return set()  # one job is at fault: each is then computed alone
        for job in jobs:
            job.note_chunk(results)
        return set(jobs)

    def _fit(self, length: int) -> int:
        return length if self._graphs is None else self._graphs.fit(length)

    def _forward_prompts(self, prompts: PromptRows) -> None:
        """Launches a pass, or lets it wait for the next decode step. In each iteration, only the
        largest pass waits. The passes don't read what the others write, because they were planned
        together.
        """
        if self._graphs is None or not self._graphs.can_join(prompts):
            self._launch_prompts(prompts)
        elif self._waiting is None:
            self._waiting = prompts
        else:
            both = (self._waiting, prompts)
            smaller, self._waiting = sorted(both, key=lambda one: one.token_ids.numel())
            self._launch_prompts(smaller)

    def launch_prompts(self) -> None:
        """Call this before other passes read or write the pages of prompts, before these pages are
        released, and at the end of an iteration.
        """
        prompts, self._waiting = self._waiting, None
        if prompts is not None:
            self._launch_prompts(prompts)

    def _launch_prompts(self, prompts: PromptRows) -> None:
        token_ids, starts, pages = prompts
        if self._graphs is not None and self._graphs.compute(prompts):
            return
        params = self.get_paged_params(
            len(starts),
            torch.from_numpy(pages),
            torch.tensor(starts, dtype=torch.int32),
            token_ids.shape[1],
        )
        self.model.forward_chunk(
            input_ids=token_ids,
            attn_params=params,
            cache=self.cache,
            loras=self.current_loras,
            preprocess_only=True,
        )

    @property
    def _graphs(self) -> Passes | None:
        return None if self.current_loras else self._passes
