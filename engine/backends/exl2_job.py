"""A job of the dynamic generator whose failures stay its own, and which samples by itself.

Methods other than the constructor run inside `generator.iterate()`.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from exllamav2 import ExLlamaV2Tokenizer
from exllamav2.ext import exllamav2_ext as ext_c
from exllamav2.generator import ExLlamaV2DynamicJob
from exllamav2.generator.dynamic import _tensor_hash_checksum

from engine.backends.detokenizer import Detokenizer
from engine.backends.draw import check
from engine.backends.logprobs import ROWS, score_chunk, token_logprobs
from engine.backends.sampler import Sampler
from engine.messages import Chunk, Job, TokenLogprob


class _Beginning:
    """Of the ids of a sequence: its first `length` tokens."""

    def __init__(self, whole: Any, length: int) -> None:
        self.torch_slice = whole.torch_slice
        self._length = length

    def __len__(self) -> int:
        return self._length


class Exl2Job(ExLlamaV2DynamicJob):  # type: ignore[misc]  # exllamav2 is untyped
    """Contains its errors: what raises out of `iterate()` would cost all jobs their results.

    A failed job puts `{"stage": "error", "error": exception, ...}` into the results. After a
    failure in `prefill` it stays active and must be cancelled; otherwise the generator lets go
    of it by itself.
    """

    def __init__(
        self,
        job: Job,
        stop_token_ids: Sequence[int],
        sampler: Sampler,
        tokenizer: ExLlamaV2Tokenizer,
        chunk_size: int,
        num_draft_tokens: int = 0,
    ) -> None:
        """`chunk_size`: tokens of the prompt in one iteration while other jobs decode."""
        self.job = job
        self.error: Exception | None = None
        self.num_sampled = 0
        self.num_told = 0  # of them, how many have come out of `iterate()` as a result
        prompts = [job.prompt, job.negative_prompt][: job.num_sequences]
        super().__init__(
            input_ids=[torch.tensor([prompt], dtype=torch.long) for prompt in prompts],
            max_new_tokens=job.max_new_tokens + num_draft_tokens,  # it ends by so many sooner
            stop_conditions=list(stop_token_ids),
            identifier=job.identifier,
        )
        self.stop_strings_utf32_offsets = None  # there are none: don't look for them
        self.sequences: list[Any]
        self.sampler = sampler
        self.is_active = False  # it has pages
        self.is_decoding = False  # its prompt has been computed
        self.is_moved = False  # other pages hold its sequences than those of its row
        self.row = 0  # in the generator's table of pages, if it is there
        self._unnoted: list[int] = []  # tokens that sequences and pages don't know of yet
        self._num_until_border = 0  # of a page, in tokens
        self._logprob: TokenLogprob | None = None  # of the token that was drawn
        self._detokenizer = Detokenizer(tokenizer, job)
        self._chunk_size = chunk_size
        self._logprobs: list[TokenLogprob] = []  # of tokens that have not been told
        self.prompt_logprobs: list[TokenLogprob | None] = [None]  # nothing precedes the first
        self.is_scored = job.prompt_logprobs is None  # or its prompt's logprobs have been told

    @property
    def num_cached(self) -> int:
        """Tokens of the prompt that the cache had; of a pair, on average."""
        num_cached: int = self.cached_pages * self.generator.page_size + self.cached_tokens
        return num_cached // len(self.sequences)

    def flush(self) -> list[Chunk]:
        """What was held back, since the job goes no further."""
        text, token_ids = self._detokenizer.flush()
        return [self._chunk(text, token_ids)] if token_ids else []

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

    def prefill(self, results: list[dict[str, Any]]) -> None:
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
            if self.is_prefill_done() and not self.is_decoding:
                self.is_decoding = True
                self._find_border()
        except Exception as error:
            self._fail(error, results)

    # Prompts, of which several are computed at once. Only what is left on the last page, which is
    # the job's own.

    def can_be_filled_up(self, is_anybody_decoding: bool) -> bool:
        """Whether only such tokens are left. Takes what it can from other pages before."""
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
        if others or sequence.kv_position // size < last // size:
            return False
        if sequence.kv_position % size == 0:
            self._copy_alike(sequence, sequence.kv_position // size)
        return True

    @property
    def start(self) -> int:
        """Of what is left, in tokens."""
        start: int = self.sequences[0].kv_position
        return start

    @property
    def num_uncomputed(self) -> int:
        return len(self.sequences[0].sequence_ids) - 1 - self.start

    @property
    def num_free(self) -> int:
        """Tokens for which the job has pages from there on."""
        return len(self.sequences[0].allocated_pages) * int(self.generator.page_size) - self.start

    def uncomputed_ids(self, length: int) -> torch.Tensor:
        """(1, length), filled up with zeros."""
        ids = torch.zeros((1, length), dtype=torch.long)
        last = self.start + self.num_uncomputed
        ids[:, : self.num_uncomputed] = self.sequences[0].sequence_ids.torch_slice(self.start, last)
        return ids

    def note_prompt(self, results: list[dict[str, Any]]) -> None:
        """All of it has been computed."""
        last = self.start + self.num_uncomputed
        self._note_computed(self.sequences[0], last)
        results.append(self._result("prefill", curr_progress=last, max_progress=last))

    def _copy_alike(self, sequence: Any, index: int) -> None:
        """Copy keys and values of the page that begins most like this one, as
        ExLlamaV2DynamicJob.prefill does.
        """
        pages, size = sequence.allocated_pages, self.generator.page_size
        pages[index].prev_hash = pages[index - 1].phash if index else None
        ids = sequence.sequence_ids.torch_slice(index * size, len(sequence.sequence_ids) - 1)
        best, length = None, 1  # one token isn't worth it
        for page in self.generator.all_pages:
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
        """Keys and values are there up to `end`, on the page on which the first was missing."""
        size, start = self.generator.page_size, sequence.kv_position
        page = sequence.allocated_pages[start // size]
        page.kv_position = end - start // size * size
        page.sequence[:, start % size : page.kv_position] = sequence.sequence_ids.torch_slice(
            start, end
        )
        page.can_revert = False
        sequence.kv_position = end

    def _score_chunk(self, size: int, results: list[dict[str, Any]]) -> None:
        """A chunk of the prompt with its logprobs; these once it is done, until they are told."""
        [sequence] = self.sequences
        start, last = sequence.kv_position, len(sequence.sequence_ids) - 1
        if start == 0:
            self.time_first_prefill = time.time()
        if start < last:
            end = min(start + size, last)
            blocks = self.get_block_index(sequence, end)
            logits = score_chunk(self.generator, sequence, blocks, end)
            vocab_size, num_top = self.generator.model.config.vocab_size, self.job.prompt_logprobs
            for i in range(0, end - start, ROWS):
                token_ids = self.job.prompt[start + 1 + i : min(start + i + ROWS, end) + 1]
                rows = logits[i : i + ROWS, :vocab_size]
                self.prompt_logprobs += token_logprobs(rows, token_ids, num_top or 0)
            results.append(
                self._result("prefill", curr_progress=sequence.kv_position, max_progress=last)
            )
        if sequence.kv_position == last:
            sequence.prefill_complete = True
            results.append(self._result("scored", eos=self.job.max_new_tokens == 0))

    def _prefill_chunk(self, size: int | None, results: list[dict[str, Any]]) -> None:
        """Compute a chunk of one sequence, no more than `size` tokens.

        The generator goes by whole pages, so it is shown a prompt that ends sooner. It counts the
        progress of a pair together and so never ends a long one: it is shown one of them.
        """
        pair, num_results = self.sequences, len(results)
        left = [s for s in pair if s.kv_position < len(s.sequence_ids) - 1]
        if not left:
            super().prefill(results)
            return
        sequence = left[0]
        whole = sequence.sequence_ids
        if size is not None and sequence.kv_position + size < len(whole) - 1:
            sequence.sequence_ids = _Beginning(whole, sequence.kv_position + size + 1)
        self.sequences = [sequence]
        try:
            super().prefill(results)
        finally:
            self.sequences = pair
            sequence.sequence_ids = whole
            sequence.prefill_complete = sequence.kv_position == len(whole) - 1
        for result in results[num_results:]:
            result["curr_progress"] = sum(s.kv_position for s in pair)
            result["max_progress"] = sum(len(s.sequence_ids) - 1 for s in pair)

    # Decoding, by a `Generator`

    def last_id(self, sequence: int = 0) -> int:
        """The newest token of a sequence, whose keys and values have not been computed."""
        if self._unnoted:
            return self._unnoted[-1]
        ids = self.sequences[sequence].sequence_ids
        return int(ids.torch_slice(len(ids) - 1, None).item())

    def position(self, sequence: int = 0) -> int:
        """Of that token."""
        position: int = self.sequences[sequence].kv_position
        return position + len(self._unnoted)

    def ends_with(self, token_id: int) -> bool:
        """Whether it is plain that a token ends the job. If not, it may still do so."""
        return (
            token_id < 0
            or token_id in self.stop_tokens
            or self.num_sampled + 1 >= self.max_new_tokens
        )

    def accept(
        self, token_id: int, logprob: TokenLogprob | None, results: list[dict[str, Any]]
    ) -> bool:
        """The next token, or below 0 why there is none; whether the job has ended."""
        try:
            if self.sampler.error is not None:
                raise self.sampler.error
            check(token_id)
            self.num_sampled += 1
            self._unnoted.append(token_id)
            if len(self._unnoted) >= self._num_until_border:
                self._note_tokens()
            result = self._result("streaming")
            if token_id in self.stop_tokens:
                result["eos"], result["eos_reason"] = True, "stop_token"
            elif self.num_sampled >= self.max_new_tokens:
                result["eos"], result["eos_reason"] = True, "max_new_tokens"
            is_last = self._tell(result, token_id, logprob)
        except Exception as error:
            self._fail(error, results)
            return True
        results.append(result)
        return is_last

    def allocate_pages(self) -> None:
        super().allocate_pages()
        self.is_active = True

    def deallocate_pages(self) -> None:
        """Once: what has been computed can be found by others."""
        if self.is_active:
            self.is_active = False
            self._note_tokens()
        super().deallocate_pages()

    def _find_border(self) -> None:
        """How many more tokens there are until a page is full."""
        size = self.generator.page_size
        self._num_until_border = min(size - s.kv_position % size for s in self.sequences)

    def _note_tokens(self) -> None:
        """Let sequences and pages know of new tokens: seldom, since it takes tensor operations.

        They never reach beyond a page's border.
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
        """A page is full: it can be found by its hash; one that was there before takes its place.
        As ExLlamaV2DynamicJob.receive_sample does.
        """
        pages, generator = sequence.allocated_pages, self.generator
        page, size = pages[index], generator.page_size
        ids = sequence.sequence_ids.torch_slice(index * size, (index + 1) * size)
        phash = _tensor_hash_checksum(ids, pages[index - 1].phash if index else None)
        if phash in generator.referenced_pages:
            serial = page.access_serial
            page.sub_ref()
            pages[index] = generator.referenced_pages[phash]
            pages[index].add_ref(serial)
            sequence.block_index_tensor = None
            self.is_moved = True
        else:
            if phash in generator.unreferenced_pages:
                generator.unreferenced_pages[phash].clear()
            page.update_hash(phash)
        pages[index + 1].prev_hash = phash
        pages[index + 1].can_revert = False

    # Decoding, by the library's generator: where it guesses ahead, or has no pages

    def receive_logits(self, logits: torch.Tensor) -> Any:
        """Draw from `logits`, (sequences, 1, padded vocabulary)."""
        row = logits[:, 0]
        try:
            drawn = self.generator.draw([self.sampler], row[:1], row[1:] if len(row) > 1 else None)
        except Exception as error:
            self.sampler.error = error
            return torch.zeros((1, 1), dtype=torch.long), None, None, None, False
        self._logprob = drawn.logprobs[0]
        return torch.tensor([drawn.token_ids]), None, None, None, False

    def receive_sample(
        self, logits: torch.Tensor, next_token: torch.Tensor, *rest: Any
    ) -> tuple[bool, torch.Tensor]:
        """Accept a token; (whether the job has ended, the token)."""
        results: list[dict[str, Any]] = rest[-2]
        num_before = len(results)
        try:
            if self.sampler.error is not None:
                raise self.sampler.error
            token_id = int(next_token.item())
            check(token_id)
            self.num_sampled += 1
            token: torch.Tensor = super().receive_sample(logits, next_token, *rest)[1]
            self.held_text = ""  # ours is another
            self.held_tokens.clear()
            return self._tell(results[-1], token_id, self._logprob), token
        except Exception as error:
            del results[num_before:]
            self._fail(error, results)
            return True, next_token  # as at a stop: the generator frees the pages

    def _tell(self, result: dict[str, Any], token_id: int, logprob: TokenLogprob | None) -> bool:
        """Complete the result of a token; whether the job has ended."""
        is_stop_token = result.get("eos_reason") == "stop_token"
        self.sampler.accept(token_id)
        if not is_stop_token and self.sampler.rules and self.sampler.obey(token_id):
            result["eos"], result["eos_reason"] = True, "end_filter"  # the generator's word
        if is_stop_token:
            text, token_ids = self._detokenizer.flush()
            result["stop_token"] = logprob
            if token_id in self.job.stop_token_ids:
                result["stop_reason"] = token_id
        else:
            if logprob is not None:
                self._logprobs.append(logprob)
            text, token_ids = self._detokenizer.push(token_id, is_last=result["eos"])
        if self._detokenizer.stop_string is not None:
            result["eos"], result["eos_reason"] = True, "stop_string"
            result["stop_reason"] = self._detokenizer.stop_string
        result["chunk"] = self._chunk(text, token_ids)
        if result["eos"]:
            result["new_tokens"] = self.num_sampled - is_stop_token
            result["cached_tokens"] = self.num_cached
        is_last: bool = result["eos"]
        return is_last

    def _chunk(self, text: str, token_ids: tuple[int, ...]) -> Chunk:
        if self.job.num_logprobs is None:
            return Chunk(self.job.identifier, text, token_ids)
        told, self._logprobs = self._logprobs[: len(token_ids)], self._logprobs[len(token_ids) :]
        return Chunk(self.job.identifier, text, token_ids, tuple(told))

    def _fail(self, error: Exception, results: list[dict[str, Any]]) -> None:
        self.error = error
        results.append(self._result("error", eos=True, error=error))

    def _result(self, stage: str, eos: bool = False, **more: Any) -> dict[str, Any]:
        return {
            "job": self,
            "stage": stage,
            "eos": eos,
            "serial": self.serial_number,
            "identifier": self.identifier,
            **more,
        }
