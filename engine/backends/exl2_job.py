"""A job of the dynamic generator whose failures stay its own, and which samples by itself.

Methods other than the constructor run inside `generator.iterate()`.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from exllamav2 import ExLlamaV2Tokenizer
from exllamav2.generator import ExLlamaV2DynamicJob

from engine.backends.constraint import Matcher
from engine.backends.detokenizer import Detokenizer
from engine.backends.forcing import Forcing
from engine.backends.logprobs import ROWS, score_chunk, token_logprobs
from engine.backends.penalties import guide
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
        rules: Sequence[Matcher | Forcing] = (),
    ) -> None:
        """`chunk_size`: tokens of the prompt in one iteration while other jobs decode. `rules` say
        which tokens may come, a later one whatever those before it do.
        """
        self.job = job
        self.error: Exception | None = None
        self.num_sampled = 0
        self.num_told = 0  # of them, how many have come out of `iterate()` as a result
        prompts = [job.prompt, job.negative_prompt][: job.num_sequences]
        super().__init__(
            input_ids=[torch.tensor([prompt], dtype=torch.long) for prompt in prompts],
            max_new_tokens=job.max_new_tokens,
            stop_conditions=list(stop_token_ids),
            identifier=job.identifier,
        )
        self.stop_strings_utf32_offsets = None  # there are none: don't look for them
        self.sequences: list[Any]
        self._sampler = sampler
        self._detokenizer = Detokenizer(tokenizer, job)
        self._chunk_size = chunk_size
        self._rules = rules
        self._raw_logits: torch.Tensor | None = None  # of the token to be drawn
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
        if (
            self.job.prompt_logprobs is not None
        ):  # pages of its own: no logits come with cached ones
            for sequence in self.sequences:
                sequence.new_unique_pages += len(sequence.page_hashes)
                sequence.page_hashes = []
            self.all_unique_hashes: list[bytes] = []

    def is_prefill_done(self) -> bool:
        """Whether the generator may decode. Never if there is nothing to generate."""
        return self.job.max_new_tokens > 0 and bool(super().is_prefill_done())

    def prefill(self, results: list[dict[str, Any]]) -> None:
        if self.error is not None:
            return
        try:
            is_anybody_decoding = any(j.is_prefill_done() for j in self.generator.active_jobs)
            if not self.is_scored:
                size = self._chunk_size if is_anybody_decoding else self.generator.max_chunk_size
                self._score_chunk(size, results)
            elif is_anybody_decoding:
                # Not before its rules are compiled: those that decode would wait for them, too. A
                # prompt of one token has no prefill to put off.
                if self.is_prefill_done() or all(rule.is_ready for rule in self._rules):
                    self._prefill_chunk(self._chunk_size, results)
            else:
                self._prefill_chunk(None, results)
        except Exception as error:
            self._fail(error, results)

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

    def receive_logits(self, logits: torch.Tensor) -> Any:
        """Sample from `logits`, (sequences, 1, padded vocabulary). May run in a sampling thread."""
        try:
            if self.job.num_logprobs is not None:
                vocab_size = self.generator.model.config.vocab_size
                self._raw_logits = logits[0, :, :vocab_size].clone()
            row = logits[:, 0]
            if self.job.negative_prompt:
                row = guide(row, self.job.sampling.cfg_scale)
            for rule in self._rules:
                rule.mask(row.view(-1))
            token = self._sampler.draw(row, self.sequences[0].sequence_ids.torch())
        except Exception as error:
            self.error = error
            token = torch.zeros((1, 1), dtype=torch.long)
        return token, None, None, None, False

    def receive_sample(
        self, logits: torch.Tensor, next_token: torch.Tensor, *rest: Any
    ) -> tuple[bool, torch.Tensor]:
        """Accept a token; (whether the job has ended, the token)."""
        results: list[dict[str, Any]] = rest[-2]
        if self.error is None:
            num_before = len(results)
            try:
                self.num_sampled += 1
                token: torch.Tensor = super().receive_sample(logits, next_token, *rest)[1]
                token_id = int(next_token.item())
                self._obey(results[-1], token_id)
                return self._tell(results[-1], token_id), token
            except Exception as error:
                self.error = error
                del results[num_before:]
        self._fail(self.error, results)
        return True, next_token  # as at a stop: the generator frees the pages

    def _obey(self, result: dict[str, Any], token_id: int) -> None:
        """Show the token to the rules, which may let no other follow."""
        if result.get("eos_reason") == "stop_token":
            return
        for rule in self._rules:
            rule.accept(token_id)
            if rule.is_done:
                result["eos"], result["eos_reason"] = True, "end_filter"  # the generator's word

    def _tell(self, result: dict[str, Any], token_id: int) -> bool:
        """Text and tokens of our own in place of the generator's, which forgets those that it
        held back; whether the job has ended.
        """
        self.held_text = ""
        self.held_tokens.clear()
        is_stop_token = result.get("eos_reason") == "stop_token"
        logprobs: list[TokenLogprob] = []
        if self._raw_logits is not None:
            logprobs = token_logprobs(self._raw_logits, [token_id], self.job.num_logprobs or 0)
        if is_stop_token:
            text, token_ids = self._detokenizer.flush()
            result["stop_token"] = next(iter(logprobs), None)
            if token_id in self.job.stop_token_ids:
                result["stop_reason"] = token_id
        else:
            self._logprobs += logprobs
            text, token_ids = self._detokenizer.push(token_id, is_last=result["eos"])
        if self._detokenizer.stop_string is not None:
            result["eos"], result["eos_reason"] = True, "stop_string"
            result["stop_reason"] = self._detokenizer.stop_string
        result["chunk"] = self._chunk(text, token_ids)
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
