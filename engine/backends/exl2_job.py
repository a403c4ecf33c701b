"""A job of the dynamic generator whose failures stay its own, with sampling as OpenAI defines it.

Methods other than the constructor run inside `generator.iterate()`.
"""

import math
from typing import Any

import torch
from exllamav2 import ExLlamaV2Tokenizer
from exllamav2.ext import exllamav2_ext
from exllamav2.generator import ExLlamaV2DynamicJob, ExLlamaV2Sampler

from engine.backends.truncation import truncate
from engine.messages import Job, Sampling

GREEDY_BELOW = 0.01  # temperature; the library's own border
SETTLED = "\ufdd1"  # a noncharacter: a replacement character that the generator doesn't wait for


def decode(tokenizer: ExLlamaV2Tokenizer, token_ids: list[int]) -> str:
    """Text of tokens inside a sequence, together, so that characters of several tokens are whole.

    Some decoders take the space away from the beginning of a text: a space in front, and what it
    becomes cut off, keeps it.
    """
    hf_tokenizer = tokenizer.tokenizer_model.hf_tokenizer
    space_ids = hf_tokenizer.encode(" ", add_special_tokens=False).ids
    text: str = hf_tokenizer.decode([*space_ids, *token_ids])
    return text[len(hf_tokenizer.decode(space_ids)) :]


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


class Exl2Job(ExLlamaV2DynamicJob):  # type: ignore[misc]  # exllamav2 is untyped
    """Contains its errors: what raises out of `iterate()` would cost all jobs their results.

    A failed job puts `{"stage": "error", "error": exception, ...}` into the results. After a
    failure in `prefill` it stays active and must be cancelled; otherwise the generator lets go
    of it by itself.
    """

    def __init__(self, job: Job, eos_token_ids: tuple[int, ...]) -> None:
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
            stop_conditions=[*stop_token_ids, *job.stop_strings],
            identifier=job.identifier,
        )
        self._stop_string_offsets: Any = self.stop_strings_utf32_offsets
        self._is_plain = job.min_new_tokens == 0 and (
            job.sampling == Sampling(temperature=job.sampling.temperature, seed=job.sampling.seed)
        )

    def prefill(self, results: list[dict[str, Any]]) -> None:
        if self.error is not None:
            return
        try:
            super().prefill(results)
        except Exception as error:
            self._fail(error, results)

    def receive_logits(self, logits: torch.Tensor) -> Any:
        """Sample from `logits`, (1, 1, padded vocabulary). May run in a sampling thread."""
        try:
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
                self._allow_stop_strings(self.num_sampled >= self.job.min_new_tokens)
                ended: tuple[bool, torch.Tensor] = super().receive_sample(logits, next_token, *rest)
                if "\ufffd" in self.held_text:
                    self._settle_held_text()
                return ended
            except Exception as error:
                self.error = error
                del results[num_before:]
        self._fail(self.error, results)
        return True, next_token  # as at a stop: the generator frees the pages

    def _settle_held_text(self) -> None:
        """Tell the generator which bytes will never be a character, so that it lets go of them.

        It holds back all text, and looks for no stop string, until a character that may be
        incomplete is complete, or five replacement characters have piled up. Once text follows
        such a byte, there is nothing to wait for.
        """
        tokenizer, token_ids = self.generator.tokenizer, self.held_tokens.torch()[0].tolist()
        text = decode(tokenizer, token_ids)
        if not text.endswith("\ufffd"):
            self.held_text = text.replace("\ufffd", SETTLED)
        elif len(token_ids) > 3:  # of a character of four bytes three may be there, at the end
            before = decode(tokenizer, token_ids[:-3]).replace("\ufffd", SETTLED)
            self.held_text = before + decode(tokenizer, token_ids[-3:])

    def _allow_stop_strings(self, is_allowed: bool) -> None:
        self.stop_strings_utf32_offsets = self._stop_string_offsets if is_allowed else None

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
        results.append(
            {
                "job": self,
                "stage": "error",
                "eos": True,
                "serial": self.serial_number,
                "identifier": self.identifier,
                "error": error,
            }
        )
