"""The pages of a job, which it takes as its text grows, and releases when another job needs
them.
"""

import logging
from typing import Any

import torch
from exllamav2.generator.dynamic import _tensor_hash_checksum

from switchyard.engine.backends.exl.results import Result
from switchyard.engine.backends.exl2.paging.pool import Pool
from switchyard.engine.backends.exl2.prompt import NONE, PromptJob

logger = logging.getLogger(__name__)

MAX_RETRIES = 2  # of a pass over tokens that a job had before it was parked
MIN_RUN = 64  # tokens that a job generates after a return, before it may be parked again


class PagedJob(PromptJob):
    """Starts with pages for its prompt and the next token.

    A parked job has no pages, but keeps everything else: sampler, rules, text. When it returns, its
    tokens so far are computed again, like a prompt. The generator reports with a `JobMoved` that a
    job was parked or has returned.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.num_sampled = 0
        self.was_parked = False
        self.is_active = False  # whether it has pages
        self.is_moved = False  # whether its pages differ from those of its row
        self.is_short = False  # whether it lacks a page for the next step
        # The logits of the job's next token while its rules aren't ready: (1, padded vocabulary),
        # or (2, …) for a pair. Meanwhile the job is in no pass.
        self.held: torch.Tensor | None = None
        self._num_found: int | None = None  # see `num_found`; None: not frozen
        self._first = 0  # tokens that it had at its last return
        self._num_retries = 0  # since it began to return
        self._unnoted: list[int] = []  # tokens not yet in its sequences and pages
        self.drafted = [0]  # for each sequence: tokens that a draft model has computed
        self._num_until_border = 0  # tokens until the current page is full; 0: unknown

    @property
    def num_found(self) -> int:
        """The number of tokens in the job's prompts that were found in the cache when it first
        started.
        """
        if self._num_found is not None:
            return self._num_found
        return int(self.cached_pages * self.generator.page_size + self.cached_tokens)

    @property
    def num_cached(self) -> int:
        """The number of tokens in the prompt that were found in the cache. For a pair, this is the
        mean of both prompts, but at most the length of the first.
        """
        return min(self.num_found // len(self.sequences), len(self.job.prompt))

    def freeze_progress(self) -> None:
        """Called when pages are released. The reported progress of prompt processing then no longer
        changes.
        """
        if self.is_decoding:
            self._num_told = self.job.num_prompt_tokens
        self._num_found = self.num_found

    @property
    def may_be_parked(self) -> bool:
        return not self.was_parked or self.num_sampled - self._first >= MIN_RUN

    @property
    def num_held_pages(self) -> int:
        return sum(len(sequence.allocated_pages or ()) for sequence in self.sequences)

    @property
    def _num_ahead(self) -> int:
        """The number of new tokens for which the job takes pages when it starts."""
        left = self.job.max_new_tokens - self.num_sampled
        return min(MIN_RUN if self.was_parked else 1, left)

    def position(self, sequence: int = 0) -> int:
        """Returns the position of the most recent token of a sequence."""
        position: int = self.sequences[sequence].kv_position
        return position + len(self._unnoted)

    def last_id(self, sequence: int = 0) -> int:
        """Returns the most recent token of a sequence. The keys and values of that token have not
        been computed yet.
        """
        if self._unnoted:
            return self._unnoted[-1]
        ids = self.sequences[sequence].sequence_ids
        return int(ids.torch_slice(len(ids) - 1, None).item())

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the first sequence."""
        return self.position() + 1

    def token_ids(self, start: int, stop: int, sequence: int = 0) -> list[int]:
        ids = self.sequences[sequence].sequence_ids
        found: list[int] = []
        if start < len(ids):
            found = ids.torch_slice(start, min(stop, len(ids)))[0].tolist()
        return found + self._unnoted[max(start - len(ids), 0) : max(stop - len(ids), 0)]

    def prepare_for_queue(self, generator: Any, serial_number: int) -> None:
        most, self.max_new_tokens = self.max_new_tokens, self._num_ahead
        try:
            super().prepare_for_queue(generator, serial_number)
        finally:
            self.max_new_tokens = most

    def allocate_pages(self) -> None:
        super().allocate_pages()
        self.is_active = self.is_moved = True

    def reach(self, num_tokens: int, pool: Pool) -> bool:
        """Take pages for `num_tokens` tokens, beginning with the most recent token. Returns whether
        there were enough pages.
        """
        return all(
            self.reach_to(self.position(i) + num_tokens, pool, i)
            for i in range(len(self.sequences))
        )

    def reach_to(self, end: int, pool: Pool, index: int = 0) -> bool:
        """Take pages for positions before `end`. Returns whether there were enough pages."""
        sequence = self.sequences[index]
        pages, size = sequence.allocated_pages, self.generator.page_size
        while len(pages) * size < end:
            page = pool.take()
            if page is None:
                return False
            page.prev_hash = pages[-1].phash  # set again once that page is full
            pages.append(page)
            sequence.block_index_tensor = None
            self.is_moved = True
        return True

    @torch.inference_mode()
    def park(self) -> None:
        """Release the pages until the job returns. No draw of the job may be in progress."""
        self._give_up_pages()
        self.freeze_progress()
        self.was_parked = True
        self._num_retries = 0
        self._first = self.num_sampled
        self.is_decoding = self.is_short = False
        self.draft_start = NONE  # same: otherwise a draft model computes more
        for sequence in self.sequences:
            sequence.kv_position = 0
            sequence.prefill_complete = False
            sequence.block_index_tensor = None
        self.prepare_for_queue(self.generator, self.serial_number)

    def fail(self, error: BaseException, results: list[Result]) -> None:
        """If a pass of a returning job fails, try the pass again, because the client may have
        received text already, and a failed pass changes nothing. `Exl2Backend` does the same for
        decode steps.
        """
        is_returning = self.was_parked and not self.is_decoding
        if is_returning and self._num_retries < MAX_RETRIES:
            self._num_retries += 1
            logger.warning("%s: a pass failed; trying again", self.identifier, exc_info=error)
        else:
            super().fail(error, results)

    @torch.inference_mode()  # called outside `iterate` too, which made its tensors
    def deallocate_pages(self) -> None:
        """Called when the job has ended. Idempotent."""
        for rule in self.sampler.rules:
            rule.close()
        self._give_up_pages()

    def _give_up_pages(self) -> None:
        """Release the pages. Other jobs can then find the computed ones."""
        self.held = None
        if self.is_active:
            self.is_active = False
            self._note_tokens()
            self._age_pages()
        super().deallocate_pages()

    def _age_pages(self) -> None:
        """Make the last page of a sequence the oldest. New jobs take the oldest pages first, and a
        prefix is useless without its beginning.
        """
        for sequence in self.sequences:
            for page in reversed(sequence.allocated_pages):
                self.generator.access_serial += 1  # same: serials only need to grow
                page.access_serial = self.generator.access_serial

    def begin_decoding(self) -> None:
        for sequence in self.sequences:
            pages, size = sequence.allocated_pages, self.generator.page_size
            if index := sequence.kv_position // size:  # not set if all earlier pages were cached
                pages[index].prev_hash = pages[index - 1].phash
        self.drafted = [min(s.kv_position, self.draft_start) for s in self.sequences]

    def _find_border(self) -> None:
        """Set the number of tokens until the current page is full."""
        size = self.generator.page_size
        self._num_until_border = min(size - s.kv_position % size for s in self.sequences)

    def _take_token(self, token_id: int) -> None:
        self.num_sampled += 1
        self._unnoted.append(token_id)
        if len(self._unnoted) >= self._num_until_border:
            self._note_tokens()

    def _note_tokens(self) -> None:
        """Add new tokens to sequences and pages. This needs tensor operations, so it is done
        rarely. The tokens never extend beyond the end of a page.
        """
        if not self._unnoted:
            return
        size = self.generator.page_size
        new_ids = torch.tensor([self._unnoted], dtype=torch.long)
        self._unnoted.clear()
        for sequence in self.sequences:
            start = sequence.kv_position
            end = start + new_ids.shape[-1]
            sequence.sequence_ids.append(new_ids)
            self._note_computed(sequence, end)
            if end % size == 0:
                self._share_page(sequence, start // size)
        self._find_border()

    def _share_page(self, sequence: Any, index: int) -> None:
        """Make a full page available by its hash, or replace it with an equal page that already
        exists, as ExLlamaV2DynamicJob.receive_sample does.
        """
        pages, generator = sequence.allocated_pages, self.generator
        page, size = pages[index], generator.page_size
        ids = sequence.sequence_ids.torch_slice(index * size, (index + 1) * size)
        phash = _tensor_hash_checksum(ids, pages[index - 1].phash if index else None)
        other = generator.referenced_pages.get(phash)
        if other is None:
            if phash in generator.unreferenced_pages:
                generator.unreferenced_pages[phash].clear()
            page.update_hash(phash)
        elif other.kv_position == size:  # else its own job is still filling it
            serial = page.access_serial
            page.sub_ref()
            pages[index] = other
            other.add_ref(serial)
            sequence.block_index_tensor = None
            self.is_moved = True
        for following in pages[index + 1 : index + 2]:  # taken for a pass launched ahead
            following.prev_hash = pages[index].phash
            following.can_revert = False

    def settle_pages(self) -> None:
        """Called when the job's logits are held. Marks the keys and values of its tokens as
        computed, but not those of the guesses that follow. For other jobs, the library does this in
        `receive_sample`.
        """
        size = self.generator.page_size
        for sequence in self.sequences:
            first = sequence.kv_position // size
            for i, page in enumerate(sequence.allocated_pages[first : first + 2], first):
                page.kv_position = min(max(sequence.kv_position + 1 - i * size, 0), size)
