"""A job of the dynamic generator whose failures stay its own, with sampling as OpenAI defines it.

Methods other than the constructor run inside `generator.iterate()`.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import torch
from exllamav2 import ExLlamaV2Tokenizer
from exllamav2.ext import exllamav2_ext
from exllamav2.generator import ExLlamaV2DynamicJob, ExLlamaV2Sampler

from engine.backends.constraint import Matcher
from engine.backends.detokenizer import Detokenizer
from engine.backends.forcing import Forcing
from engine.backends.logprobs import ROWS, score_chunk, token_logprobs
from engine.backends.truncation import truncate
from engine.messages import Chunk, Job, Sampling, TokenLogprob

GREEDY_BELOW = 0.01  # temperature; the library's own border


def make_settings(sampling: Sampling) -> ExLlamaV2Sampler.Settings:
    """Every field set: the library's defaults are opinions (top_k 50, top_p 0.8, penalty 1.025).

    Penalties and filters are off here since `Exl2Job` has applied them before. A fresh object for
    each job, because the library keeps state in it.
    """
    return ExLlamaV2Sampler.Settings(
        token_repetition_penalty=1.0,
        token_repetition_range=-1,
        token_repetition_decay=0,
        token_frequency_penalty=0.0,
        token_presence_penalty=0.0,
        temperature=sampling.temperature,
        smoothing_factor=0.0,
        min_temp=0.0,
        max_temp=0.0,
        temp_exponent=1.0,
        top_k=0,
        top_p=0.0,
        top_a=0.0,
        min_p=0.0,
        tfs=0.0,
        typical=0.0,
        skew=0.0,
        temperature_last=False,
        mirostat=False,
        mirostat_tau=1.5,
        mirostat_eta=0.1,
        mirostat_mu=None,
        token_bias=None,
        cfg_scale=None,
        post_sampling_hooks=[],
        dry_allowed_length=2,
        dry_base=1.75,
        dry_multiplier=0.0,
        dry_sequence_breakers=None,
        dry_range=0,
        dry_max_ngram=20,
        ngram_trie=None,
        ngram_index=0,
        xtc_probability=0.0,
        xtc_threshold=0.1,
        xtc_ignore_tokens=None,
    )


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
        eos_token_ids: tuple[int, ...],
        tokenizer: ExLlamaV2Tokenizer,
        chunk_size: int,
        rules: Sequence[Matcher | Forcing] = (),
    ) -> None:
        """`chunk_size`: tokens of the prompt in one iteration while other jobs decode. `rules` say
        which tokens may come, a later one whatever those before it do.
        """
        stop_token_ids = {*job.stop_token_ids, *(() if job.ignore_eos else eos_token_ids)}
        self.job = job
        self.error: Exception | None = None
        self.num_sampled = 0
        self.num_told = 0  # of them, how many have come out of `iterate()` as a result
        super().__init__(
            input_ids=torch.tensor([job.prompt], dtype=torch.long),
            max_new_tokens=job.max_new_tokens,
            gen_settings=make_settings(job.sampling),
            # Unsigned: Python's generator takes the absolute value, and -1 would be 1.
            seed=None if job.sampling.seed is None else job.sampling.seed % 2**64,
            stop_conditions=list(stop_token_ids),
            identifier=job.identifier,
        )
        self.stop_strings_utf32_offsets = None  # there are none: don't look for them
        self._detokenizer = Detokenizer(tokenizer, job)
        self._chunk_size = chunk_size
        self._rules = rules
        self._raw_logits: torch.Tensor | None = None  # of the token to be drawn
        self._logprobs: list[TokenLogprob] = []  # of tokens that have not been told
        self.prompt_logprobs: list[TokenLogprob | None] = [None]  # nothing precedes the first
        self.is_scored = job.prompt_logprobs is None  # or its prompt's logprobs have been told
        self._is_plain = job.min_new_tokens == 0 and (
            job.sampling == Sampling(temperature=job.sampling.temperature, seed=job.sampling.seed)
        )

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
                if all(rule.is_ready for rule in self._rules):  # else they would wait with it
                    self._prefill_chunk(results)
            else:
                super().prefill(results)
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

    def _prefill_chunk(self, results: list[dict[str, Any]]) -> None:
        """Compute no more than `chunk_size` tokens, which the generator's own way, by whole pages,
        can't: it is shown a prompt that ends there.
        """
        [sequence] = self.sequences
        whole, num_results = sequence.sequence_ids, len(results)
        end, last = sequence.kv_position + self._chunk_size, len(whole) - 1
        if end < last:
            sequence.sequence_ids = _Beginning(whole, end + 1)
        try:
            super().prefill(results)
        finally:
            sequence.sequence_ids = whole
            sequence.prefill_complete = self.is_prefill_done()
        for result in results[num_results:]:
            result["max_progress"] = last

    def receive_logits(self, logits: torch.Tensor) -> Any:
        """Sample from `logits`, (1, 1, padded vocabulary). May run in a sampling thread."""
        try:
            if self.job.num_logprobs is not None:
                vocab_size = self.generator.model.config.vocab_size
                self._raw_logits = logits.view(1, -1)[:, :vocab_size].clone()
            for rule in self._rules:
                rule.mask(logits.view(-1))
            if not self._is_plain:
                self._process(logits)
            sample = super().receive_logits(logits)
            if math.isnan(sample[3].item()):  # all that the compiled sampler lets one notice
                raise ArithmeticError("the model's logits are not numbers")
        except Exception as error:
            self.error = error
            return torch.zeros((1, 1), dtype=torch.long), None, None, None, False
        return sample

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
        result["cached_tokens"] = self.cached_pages * self.generator.page_size + self.cached_tokens
        is_last: bool = result["eos"]
        return is_last

    def _chunk(self, text: str, token_ids: tuple[int, ...]) -> Chunk:
        if self.job.num_logprobs is None:
            return Chunk(self.job.identifier, text, token_ids)
        told, self._logprobs = self._logprobs[: len(token_ids)], self._logprobs[len(token_ids) :]
        return Chunk(self.job.identifier, text, token_ids, tuple(told))

    def _process(self, logits: torch.Tensor) -> None:
        """Penalties, forbidden stops, filters: in place, before the library draws."""
        sampling = self.job.sampling
        sequence = self.sequences[0].sequence_ids.torch()
        if sampling.repetition_penalty != 1.0:  # of prompt and completion (Keskar et al. 2019)
            exllamav2_ext.apply_rep_penalty(
                sequence, sampling.repetition_penalty, -1, 0, 0.0, 0.0, logits
            )
        if sampling.frequency_penalty or sampling.presence_penalty:  # of the completion: OpenAI
            completion = sequence[:, len(self.job.prompt) :]
            if completion.shape[-1]:
                exllamav2_ext.apply_rep_penalty(
                    completion,
                    1.0,
                    -1,
                    0,
                    sampling.frequency_penalty,
                    sampling.presence_penalty,
                    logits,
                )
        if self.num_sampled < self.job.min_new_tokens:
            logits[..., self.stop_tokens_list] = -math.inf
        if sampling.temperature >= GREEDY_BELOW:
            vocab_size = self.generator.tokenizer.get_vocab_size()
            truncate(
                logits.view(-1)[:vocab_size],  # the rest is padding
                sampling.temperature,
                sampling.top_k,
                sampling.top_p,
                sampling.min_p,
            )

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
