"""The prompt phase of a dynamic generator's job. Runs inside `generator.iterate()`."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from exllamav2.generator import ExLlamaV2DynamicJob

from switchyard.engine.backends.exl.results import (
    JobBroken,
    PromptComputed,
    PromptScored,
    Result,
)
from switchyard.engine.backends.sampling.logprobs import ROWS, score_chunk, token_logprobs
from switchyard.engine.backends.sampling.sampler import Sampler
from switchyard.engine.job import Job
from switchyard.engine.messages import TokenLogprob

NONE = 2**31  # no token has this position


class _Beginning:
    """The first `length` tokens of a sequence's ids."""

    def __init__(self, whole: Any, length: int) -> None:
        self.torch_slice = whole.torch_slice
        self._length = length

    def __len__(self) -> int:
        return self._length


class PromptJob(ExLlamaV2DynamicJob):  # type: ignore[misc]  # exllamav2 is untyped
    """A job that computes its prompt in chunks, or lets the generator compute it together with the
    prompts of other jobs. While other jobs decode, a chunk may end inside a page, because on a CPU
    a whole page takes as long as eight decode steps.
    """

    def __init__(
        self,
        job: Job,
        stop_token_ids: Sequence[int],
        sampler: Sampler,
    ) -> None:
        self.job = job
        self.sampler = sampler
        self.error: BaseException | None = None
        prompts = [job.prompt, job.negative_prompt][: job.num_sequences]
        super().__init__(
            input_ids=[torch.tensor([prompt], dtype=torch.long) for prompt in prompts],
            max_new_tokens=job.max_new_tokens,
            stop_conditions=list(stop_token_ids),
            identifier=job.identifier,
        )
        self.sequences: list[Any]
        self.max_new_tokens: int
        self.is_decoding = False  # whether its prompt has been computed
        self.prompt_logprobs: list[TokenLogprob | None] = [None]  # nothing precedes the first
        self.is_scored = job.prompt_logprobs is None  # becomes True after the logprobs
        self.num_next = 0
        self.draft_start = NONE  # the first token that a common pass has computed
        self._num_told = 0  # tokens whose computation was reported

    def prepare_for_queue(self, generator: Any, serial_number: int) -> None:
        super().prepare_for_queue(generator, serial_number)
        if not self.is_scored:
            # The job needs its own pages, because cached pages have no logits.
            for sequence in self.sequences:
                sequence.new_unique_pages += len(sequence.page_hashes)
                sequence.page_hashes = []
            self.all_unique_hashes: list[bytes] = []

    def is_prefill_done(self) -> bool:
        """Whether the generator may decode this job. Always False for a job that generates
        nothing.
        """
        return self.job.max_new_tokens > 0 and bool(super().is_prefill_done())

    @property
    def num_left(self) -> int:
        """The number of tokens in the job's prompts that have not been computed yet."""
        return sum(len(s.sequence_ids) - 1 - s.kv_position for s in self.sequences)

    @property
    def _share(self) -> int:
        """The number of tokens in the job's prompt that the iteration's budget allows."""
        most = min(self.num_left, self.generator.max_chunk_size)
        return int(self.generator.budget.share(most))

    def prefill(self, results: list[Result]) -> None:
        if self.error is not None or (self.is_decoding and self.is_scored):
            return
        share, before = self._share, self.num_left
        if before and not share:
            return  # the budget is spent
        try:
            self.generator.launch_prompts()
            if not self.is_scored:
                self._score_chunk(share, results)
            else:
                self._prefill_chunk(share, results)
            self._begin_if_done()
        except BaseException as error:
            self.fail(error, results)
        finally:
            self.generator.budget.spend(max(before - self.num_left, 0))

    def _begin_if_done(self) -> None:
        if self.is_prefill_done() and not self.is_decoding:
            self.is_decoding = True
            self.begin_decoding()

    def begin_decoding(self) -> None:
        """Called after the prompt has been computed."""

    # In a pass of the generator, perhaps for several jobs at once

    def plan(self) -> bool:
        """Take over cached pages and a share of the budget. Returns whether a chunk of `num_next`
        tokens, beginning at `start`, can then be computed in a common pass.
        """
        self.num_next = 0
        if self.error is not None or self.is_decoding or not self.is_scored:
            return False
        [sequence, *others] = self.sequences
        size, last = self.generator.page_size, len(sequence.sequence_ids) - 1
        for page in sequence.allocated_pages[sequence.kv_position // size : last // size]:
            if sequence.kv_position % size or page.kv_position < size:
                break
            sequence.kv_position += size  # another job has computed the page meanwhile
            page.can_revert = False
            self.cached_pages += 1
        if others:
            return False
        if sequence.kv_position % size == 0:
            self._copy_alike(sequence, sequence.kv_position // size)
        self.num_next = self._end_of_chunk(sequence) - self.start
        self.generator.budget.spend(self.num_next)
        return self.num_next > 0

    def give_share_back(self) -> None:
        """Called when no common pass has computed the planned chunk."""
        self.generator.budget.spend(-self.num_next)
        self.num_next = 0

    def _end_of_chunk(self, sequence: Any) -> int:
        size: int = self.generator.page_size
        start, last = self.start, len(sequence.sequence_ids) - 1
        end = min(start + self._share, last)
        if start < end // size * size and end < last:
            end = end // size * size
        for i in range(start // size + 1, -(-end // size)):
            if sequence.allocated_pages[i].kv_position == size:
                return i * size
        return end

    @property
    def start(self) -> int:
        """The first token that has not been computed yet."""
        start: int = self.sequences[0].kv_position
        return start

    def row_start(self, length: int) -> int | None:
        """Returns the start of a row of `length` tokens that contains the chunk and whose padding
        no other job reads. This is `start`, or an earlier position in the same page. Returns None
        if there is no room.
        """
        [sequence] = self.sequences
        size, end = int(self.generator.page_size), self.start + self.num_next
        is_last = end == len(sequence.sequence_ids) - 1  # then all later pages are its own
        limit = len(sequence.allocated_pages) * size if is_last else end
        start = min(self.start, max(self.start // size * size, limit - length))
        return start if start + length <= limit else None

    def ids_from(self, start: int) -> torch.Tensor:
        """Returns the token ids from `start` to the end of the chunk, (1, tokens)."""
        end = self.start + self.num_next
        ids: torch.Tensor = self.sequences[0].sequence_ids.torch_slice(start, end)
        return ids

    def will_write(self, start: int, end: int, sequence: int = 0) -> None:
        """Announce that a pass will write keys and values from `start` to `end`. The pages that it
        may write to lose their cached content.
        """
        size = self.generator.page_size
        for page in self.sequences[sequence].allocated_pages[start // size : -(-end // size)]:
            page.can_revert = False

    def note_chunk(self, results: list[Result]) -> None:
        """Note that the chunk has been computed."""
        [sequence] = self.sequences
        pages, size = sequence.allocated_pages, self.generator.page_size
        end = self.start + self.num_next
        for i in range(self.start // size, min(end // size + 1, len(pages))):
            pages[i].prev_hash = pages[i - 1].phash if i else None
        self.draft_start = min(self.draft_start, self.start)
        self._note_computed(sequence, end)
        self._tell_progress(results)
        self._begin_if_done()

    def _copy_alike(self, sequence: Any, index: int) -> None:
        """Copy keys and values from the page with the longest common beginning, as
        ExLlamaV2DynamicJob.prefill does.
        """
        pages, size = sequence.allocated_pages, self.generator.page_size
        pages[index].prev_hash = pages[index - 1].phash if index else None
        ids = sequence.sequence_ids.torch_slice(index * size, len(sequence.sequence_ids) - 1)
        best, length = self.generator.find_alike(pages[index], ids)
        if best is None:
            return
        start, target = best.page_index * size, pages[index].page_index * size
        cache = self.generator.cache
        cache.copy_states(cache, start, length, target, length, 0, 1, 0, 1)
        self.cached_tokens += length
        self._note_computed(sequence, index * size + length)

    def _note_computed(self, sequence: Any, end: int) -> None:
        """Records that keys and values have been computed up to `end`."""
        size, start = self.generator.page_size, sequence.kv_position
        for i in range(start // size, -(-end // size)):
            page = sequence.allocated_pages[i]
            first, last = max(start, i * size), min(end, i * size + size)
            page.kv_position = last - i * size
            page.sequence[:, first - i * size : page.kv_position] = (
                sequence.sequence_ids.torch_slice(first, last)
            )
            page.can_revert = False
        sequence.kv_position = end

    def _score_chunk(self, size: int, results: list[Result]) -> None:
        """Compute a chunk of the prompt with its logprobs. After the last chunk, each iteration
        adds a `PromptScored` to the results until one has been delivered.
        """
        [sequence] = self.sequences
        start, last = sequence.kv_position, len(sequence.sequence_ids) - 1
        if start == 0:
            self.time_first_prefill = time.time()
        if start < last:
            end = min(start + size, last)
            self.will_write(start, end)
            blocks = self.get_block_index(sequence, end)
            logits = score_chunk(self.generator, sequence, blocks, end)
            vocab_size, num_top = self.generator.model.config.vocab_size, self.job.prompt_logprobs
            for i in range(0, end - start, ROWS):
                token_ids = self.job.prompt[start + 1 + i : min(start + i + ROWS, end) + 1]
                rows = logits[i : i + ROWS, :vocab_size]
                self.prompt_logprobs += token_logprobs(rows, token_ids, num_top or 0)
            self._tell_progress(results)
        if sequence.kv_position == last:
            sequence.prefill_complete = True
            results.append(PromptScored(self.identifier, self.job.max_new_tokens == 0))

    def _prefill_chunk(self, size: int, results: list[Result]) -> None:
        """Compute a chunk of one sequence, with at most `size` tokens.

        The library's prefill works on whole pages, so it gets a shortened prompt. For a pair, the
        library adds up the progress of both sequences and would never finish a long one, so it gets
        one sequence at a time.
        """
        pair, told = self.sequences, list[dict[str, Any]]()  # the library's results
        left = [s for s in pair if s.kv_position < len(s.sequence_ids) - 1]
        if not left:
            super().prefill(told)
            if told:
                self._tell_progress(results)
            return
        sequence = left[0]
        whole = sequence.sequence_ids
        if self.generator.paged:  # the pass may fail half-way
            start = sequence.kv_position
            end = min(start + size, len(whole) - 1)
            self.will_write(start, end, pair.index(sequence))
        if sequence.kv_position + size < len(whole) - 1:
            sequence.sequence_ids = _Beginning(whole, sequence.kv_position + size + 1)
        self.sequences = [sequence]
        try:
            super().prefill(told)
        finally:
            self.sequences = pair
            sequence.sequence_ids = whole
            sequence.prefill_complete = sequence.kv_position == len(whole) - 1
        if told:
            self._tell_progress(results)

    def _tell_progress(self, results: list[Result]) -> None:
        """Report how much of the job's prompts has been computed, unless that was already
        reported.
        """
        total = self.job.num_prompt_tokens - len(self.sequences)
        done = min(sum(s.kv_position for s in self.sequences), total)
        if done > self._num_told:
            self._num_told = done
            results.append(PromptComputed(self.identifier, done, total))

    def fail(self, error: BaseException, results: list[Result]) -> None:
        self.error = error
        results.append(JobBroken(self.identifier, error))
