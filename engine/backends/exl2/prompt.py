"""A job of the dynamic generator, as far as its prompt goes. Runs inside `generator.iterate()`."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from exllamav2.ext import exllamav2_ext as ext_c
from exllamav2.generator import ExLlamaV2DynamicJob

from switchyard.engine.backends.exl2.results import (
    JobBroken,
    PromptComputed,
    PromptScored,
    Result,
)
from switchyard.engine.backends.sampling.logprobs import ROWS, score_chunk, token_logprobs
from switchyard.engine.backends.sampling.sampler import Sampler
from switchyard.engine.job import Job
from switchyard.engine.messages import TokenLogprob

# Tokens of a page that begins like another, or all that it has: to copy fewer takes longer than to
# compute them with the rest.
MIN_ALIKE = 32


class _Beginning:
    """Of the ids of a sequence: its first `length` tokens."""

    def __init__(self, whole: Any, length: int) -> None:
        self.torch_slice = whole.torch_slice
        self._length = length

    def __len__(self) -> int:
        return self._length


class PromptJob(ExLlamaV2DynamicJob):  # type: ignore[misc]  # exllamav2 is untyped
    """Computes its prompt in chunks, or lets the generator do so together with those of others."""

    def __init__(
        self, job: Job, stop_token_ids: Sequence[int], sampler: Sampler, chunk_size: int, room: int
    ) -> None:
        """`chunk_size`: tokens of the prompt in one iteration while other jobs decode. `room`: of
        its pages, for tokens beyond those that it may generate.
        """
        self.job = job
        self.sampler = sampler
        self.error: BaseException | None = None
        prompts = [job.prompt, job.negative_prompt][: job.num_sequences]
        super().__init__(
            input_ids=[torch.tensor([prompt], dtype=torch.long) for prompt in prompts],
            max_new_tokens=job.max_new_tokens + room,
            stop_conditions=list(stop_token_ids),
            identifier=job.identifier,
        )
        self.sequences: list[Any]
        self.is_decoding = False  # its prompt has been computed
        self.prompt_logprobs: list[TokenLogprob | None] = [None]  # nothing precedes the first
        self.is_scored = job.prompt_logprobs is None  # or its prompt's logprobs have been told
        self.num_next = 0
        self._chunk_size = chunk_size

    @property
    def num_cached(self) -> int:
        """Tokens of the prompt that the cache had; of a pair, on average."""
        num_cached: int = self.cached_pages * self.generator.page_size + self.cached_tokens
        return num_cached // len(self.sequences)

    def prepare_for_queue(self, generator: Any, serial_number: int) -> None:
        super().prepare_for_queue(generator, serial_number)
        if self.job.prompt_logprobs is not None:
            # Pages of its own: no logits come with cached ones.
            for sequence in self.sequences:
                sequence.new_unique_pages += len(sequence.page_hashes)
                sequence.page_hashes = []
            self.all_unique_hashes: list[bytes] = []

    def is_prefill_done(self) -> bool:
        """Whether the generator may decode. Never if there is nothing to generate."""
        return self.job.max_new_tokens > 0 and bool(super().is_prefill_done())

    def prefill(self, results: list[Result]) -> None:
        if self.error is not None or (self.is_decoding and self.is_scored):
            return
        try:
            is_anybody_decoding = any(j.is_decoding for j in self.generator.active_jobs)
            if not self.is_scored:
                size = self._chunk_size if is_anybody_decoding else self.generator.max_chunk_size
                self._score_chunk(size, results)
            elif is_anybody_decoding:
                # Not before its rules are compiled: those that decode would wait for them, too. A
                # prompt of one token has no prefill to put off.
                if self.is_prefill_done() or all(rule.is_ready for rule in self.sampler.rules):
                    self._prefill_chunk(self._chunk_size, results)
            else:
                self._prefill_chunk(None, results)
            self._begin_if_done()
        except BaseException as error:
            self.fail(error, results)

    def _begin_if_done(self) -> None:
        if self.is_prefill_done() and not self.is_decoding:
            self.is_decoding = True
            self.begin_decoding()

    def begin_decoding(self) -> None:
        """The prompt is computed."""

    # In a pass that the generator computes, perhaps for several jobs at once.

    def plan(self, is_anybody_decoding: bool) -> bool:
        """Take what other pages have. Whether a chunk can be computed then, of `num_next` tokens
        from `start` on.
        """
        is_ready = not is_anybody_decoding or all(rule.is_ready for rule in self.sampler.rules)
        if self.error is not None or self.is_decoding or not self.is_scored or not is_ready:
            return False
        [sequence, *others] = self.sequences
        size, last = self.generator.page_size, len(sequence.sequence_ids) - 1
        for page in sequence.allocated_pages[sequence.kv_position // size : last // size]:
            if sequence.kv_position % size or page.kv_position < size:
                break
            sequence.kv_position += size  # another job has computed it meanwhile
            page.can_revert = False
            self.cached_pages += 1
        if others:
            return False
        if sequence.kv_position % size == 0:
            self._copy_alike(sequence, sequence.kv_position // size)
        self.num_next = self._end_of_chunk(sequence, is_anybody_decoding) - self.start
        return self.num_next > 0

    def _end_of_chunk(self, sequence: Any, is_anybody_decoding: bool) -> int:
        size: int = self.generator.page_size
        start, last = self.start, len(sequence.sequence_ids) - 1
        most = self._chunk_size if is_anybody_decoding else self.generator.max_chunk_size
        end = min(start + most, last)
        if start < end // size * size and end < last:
            end = end // size * size
        for i in range(start // size + 1, -(-end // size)):
            if sequence.allocated_pages[i].kv_position == size:
                return i * size
        return end

    @property
    def start(self) -> int:
        """Of what is left, in tokens."""
        start: int = self.sequences[0].kv_position
        return start

    def row_start(self, length: int) -> int | None:
        """Where a row of `length` tokens with the chunk begins, so that nobody else looks at what
        it has behind that: at `start`, or before it on the same page. None if there is no room.
        """
        [sequence] = self.sequences
        size, end = int(self.generator.page_size), self.start + self.num_next
        is_last = end == len(sequence.sequence_ids) - 1  # then the pages that follow are its own
        limit = len(sequence.allocated_pages) * size if is_last else end
        start = min(self.start, max(self.start // size * size, limit - length))
        return start if start + length <= limit else None

    def ids_from(self, start: int) -> torch.Tensor:
        """(1, tokens), to the end of the chunk."""
        end = self.start + self.num_next
        ids: torch.Tensor = self.sequences[0].sequence_ids.torch_slice(start, end)
        return ids

    def will_write(self, start: int, end: int, sequence: int = 0) -> None:
        """Before a pass: keys and values at `start` up to `end`, wherever the job ends. What pages
        have held before must not come back when they are let go unused.
        """
        size = self.generator.page_size
        for page in self.sequences[sequence].allocated_pages[start // size : -(-end // size)]:
            page.can_revert = False

    def note_chunk(self, results: list[Result]) -> None:
        """It has been computed."""
        [sequence] = self.sequences
        pages, size = sequence.allocated_pages, self.generator.page_size
        end = self.start + self.num_next
        for i in range(self.start // size, min(end // size + 1, len(pages))):
            pages[i].prev_hash = pages[i - 1].phash if i else None
        self._note_computed(sequence, end)
        last = len(sequence.sequence_ids) - 1
        results.append(PromptComputed(self.identifier, end, last))
        self._begin_if_done()

    def _copy_alike(self, sequence: Any, index: int) -> None:
        """Copy keys and values of the page that begins most like this one, as
        ExLlamaV2DynamicJob.prefill does.
        """
        pages, size = sequence.allocated_pages, self.generator.page_size
        pages[index].prev_hash = pages[index - 1].phash if index else None
        ids = sequence.sequence_ids.torch_slice(index * size, len(sequence.sequence_ids) - 1)
        if ids.shape[-1] < 2:  # one token isn't worth it
            return
        best, length = None, max(min(MIN_ALIKE, ids.shape[-1]) - 1, 1)
        for page in self.generator.pages_beginning_with(*ids[0, :2].tolist()):
            if page.kv_position <= length or page.prev_hash != pages[index].prev_hash:
                continue
            if page is pages[index]:
                continue
            match = ext_c.count_match(page.sequence, ids, page.kv_position)
            if match > length:
                best, length = page, match
        if best is None:
            return
        start, target = best.page_index * size, pages[index].page_index * size
        cache = self.generator.cache
        cache.copy_states(cache, start, length, target, length, 0, 1, 0, 1)
        self.cached_tokens += length
        self._note_computed(sequence, index * size + length)

    def _note_computed(self, sequence: Any, end: int) -> None:
        """Keys and values are there up to `end`."""
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
        """A chunk of the prompt with its logprobs; these once it is done, until they are told."""
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
            results.append(PromptComputed(self.identifier, sequence.kv_position, last))
        if sequence.kv_position == last:
            sequence.prefill_complete = True
            results.append(PromptScored(self.identifier, self.job.max_new_tokens == 0))

    def _prefill_chunk(self, size: int | None, results: list[Result]) -> None:
        """Compute a chunk of one sequence, no more than `size` tokens.

        The generator goes by whole pages, so it is shown a prompt that ends sooner. It counts the
        progress of a pair together and so never ends a long one: it is shown one of them.
        """
        pair, told = self.sequences, list[dict[str, Any]]()  # by the library
        left = [s for s in pair if s.kv_position < len(s.sequence_ids) - 1]
        if not left:
            super().prefill(told)
            self._note_progress(told, results)
            return
        sequence = left[0]
        whole = sequence.sequence_ids
        if self.generator.paged:  # it may fail half-way
            start = sequence.kv_position
            end = min(start + (size or self.generator.max_chunk_size), len(whole) - 1)
            self.will_write(start, end, pair.index(sequence))
        if size is not None and sequence.kv_position + size < len(whole) - 1:
            sequence.sequence_ids = _Beginning(whole, sequence.kv_position + size + 1)
        self.sequences = [sequence]
        try:
            super().prefill(told)
        finally:
            self.sequences = pair
            sequence.sequence_ids = whole
            sequence.prefill_complete = sequence.kv_position == len(whole) - 1
        self._note_progress(told, results)

    def _note_progress(self, told: list[dict[str, Any]], results: list[Result]) -> None:
        """Of all its prompts, if the library has told of any."""
        if told:
            done = sum(s.kv_position for s in self.sequences)
            total = sum(len(s.sequence_ids) - 1 for s in self.sequences)
            results.append(PromptComputed(self.identifier, done, total))

    def fail(self, error: BaseException, results: list[Result]) -> None:
        self.error = error
        results.append(JobBroken(self.identifier, error))
