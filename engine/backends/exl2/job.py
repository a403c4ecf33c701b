"""A job of the dynamic generator that handles its own failures and samples its own tokens.

All methods that compute or draw run inside `generator.iterate()`.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from switchyard.engine.backends.exl.detokenizer import Detokenizer
from switchyard.engine.backends.exl.results import JobEnd, Result, TokenTold
from switchyard.engine.backends.exl2.paging.paged_job import PagedJob
from switchyard.engine.backends.sampling.draw import check
from switchyard.engine.backends.sampling.sampler import Sampler
from switchyard.engine.job import Job
from switchyard.engine.messages import Chunk, TokenLogprob

NO_TOKEN = -1


class Exl2Job(PagedJob):
    """Catches its own errors, because an exception from `iterate()` would lose the results of all
    jobs. These errors include panics in Rust libraries, which aren't of type `Exception`. A failed
    job adds a `JobBroken` to the results.
    """

    def __init__(
        self,
        job: Job,
        stop_token_ids: Sequence[int],
        sampler: Sampler,
        detokenizer: Detokenizer,
        end_token_ids: Iterable[int] = (),
    ) -> None:
        """`end_token_ids`: the tokens in `stop_token_ids` that also count in spans."""
        super().__init__(job, stop_token_ids, sampler)
        self.stop_strings_utf32_offsets = None  # the library doesn't search for stop strings
        self.num_told = 0  # sampled tokens that `iterate()` has returned in a result
        self.held_at = 0.0  # time of `hold`, on the monotonic clock
        self.row = 0  # its row in the generator's table of pages, if it has one
        self._logprob: TokenLogprob | None = None  # of the drawn token
        self._detokenizer = detokenizer
        stops = frozenset(stop_token_ids)
        self._ends = stops - (frozenset(job.stop_token_ids) - frozenset(end_token_ids))
        self._stops = stops - detokenizer.unsure
        self._choose_stops()
        self._logprobs: list[TokenLogprob] = []  # of tokens not yet in a result

    def flush(self) -> list[Chunk]:
        """Returns the text that was held back. Called after the job has ended."""
        text, token_ids = self._detokenizer.flush()
        return [self._chunk(text, token_ids)] if text or token_ids else []

    def hold(self, logits: torch.Tensor) -> None:
        """Keep the logits of the next token until the job's rules are ready."""
        self.held = logits.clone()  # the next pass may overwrite them
        self.held_at = time.monotonic()

    # Decoding by a `Generator`

    def ends_with(self, token_id: int) -> bool:
        """Whether this token certainly ends the job. Other tokens may end the job, too."""
        return token_id < 0 or token_id in self.stop_tokens or self.is_at_last

    @property
    def is_at_last(self) -> bool:
        """Whether the next token ends the job, whatever it is."""
        is_at_last: bool = self.num_sampled + 1 >= self.max_new_tokens
        return is_at_last

    def accept(self, token_id: int, logprob: TokenLogprob | None, results: list[Result]) -> bool:
        """Take the next token. A negative id is the code that `draw` returns for a failed draw.
        Returns whether the job has ended.
        """
        try:
            if self.sampler.error is not None:
                raise self.sampler.error
            check(token_id)
            self._take_token(token_id)
            end = None
            if token_id in self.stop_tokens:
                end = "stop_token"
            elif self.num_sampled >= self.max_new_tokens:
                end = "max_new_tokens"
            result = self._tell(token_id, logprob, end)
        except BaseException as error:
            self.fail(error, results)
            return True
        results.append(result)
        return result.end is not None

    # Decoding by the library's generator, without pages

    def is_prefill_done(self) -> bool:
        """Whether the generator may decode this job."""
        return self.held is None and super().is_prefill_done()

    def receive_logits(self, logits: torch.Tensor) -> Any:
        """Draw from `logits`, (sequences, 1, padded vocabulary), or hold these logits."""
        row = logits[:, 0]
        if not self.sampler.begin():
            self.hold(row)
            return torch.full((1, 1), NO_TOKEN), None, None, None, False
        try:
            drawn = self.generator.draw([self.sampler], row[:1], row[1:] if len(row) > 1 else None)
        except BaseException as error:
            self.sampler.error = error
            return torch.zeros((1, 1), dtype=torch.long), None, None, None, False
        self._logprob = drawn.logprobs[0]
        return torch.tensor([drawn.token_ids]), None, None, None, False

    def receive_sample(
        self, logits: torch.Tensor, next_token: torch.Tensor, *rest: Any
    ) -> tuple[bool, torch.Tensor]:
        """Accept a token. Returns whether the job has ended, and the token. While the job's logits
        are held, the token is NO_TOKEN, which no guess equals.
        """
        if self.held is not None:
            return False, next_token
        *others, results, is_first = rest
        told: list[dict[str, Any]] = []
        try:
            if self.sampler.error is not None:
                raise self.sampler.error
            token_id = int(next_token.item())
            check(token_id)
            self.num_sampled += 1
            token: torch.Tensor = super().receive_sample(
                logits, next_token, *others, told, is_first
            )[1]
            self.held_text = ""  # the text is held in the detokenizer
            self.held_tokens.clear()
            result = self._tell(token_id, self._logprob, told[-1].get("eos_reason"))
        except BaseException as error:
            self.fail(error, results)
            return True, next_token  # like a stop token: the generator frees the pages
        results.append(result)
        return result.end is not None, token

    def _tell(self, token_id: int, logprob: TokenLogprob | None, end: str | None) -> TokenTold:
        """Returns the text of a token. `end`: the library's reason if the token ends the job."""
        is_stop_token = end == "stop_token"
        stop_reason: str | int | None = None
        self.sampler.accept(token_id)
        if not is_stop_token and self.sampler.rules and self.sampler.obey(token_id):
            end = "end_filter"
        if is_stop_token:
            text, token_ids = self._detokenizer.flush()
            if token_id in self.job.stop_token_ids:
                stop_reason = token_id
        else:
            if logprob is not None:
                self._logprobs.append(logprob)
            text, token_ids = self._detokenizer.push(token_id, is_last=end is not None)
        if self._detokenizer.stop is not None:
            end, stop_reason = "stop_string", self._detokenizer.stop
        self._choose_stops()
        chunk = self._chunk(text, token_ids)
        if end is None:
            return TokenTold(self.job.identifier, chunk)
        return TokenTold(
            self.job.identifier,
            chunk,
            JobEnd(
                is_at_limit=end == "max_new_tokens",
                new_tokens=self.num_sampled - is_stop_token,
                cached_tokens=self.num_cached,
                stop_reason=stop_reason,
                stop_token=logprob if is_stop_token else None,
            ),
        )

    def _choose_stops(self) -> None:
        """Sets the tokens that end the job if they come next."""
        self.stop_tokens = self._ends if self._detokenizer.is_in_span else self._stops

    def _chunk(self, text: str, token_ids: tuple[int, ...]) -> Chunk:
        if self.job.num_logprobs is None:
            return Chunk(self.job.identifier, text, token_ids)
        told, self._logprobs = self._logprobs[: len(token_ids)], self._logprobs[len(token_ids) :]
        return Chunk(self.job.identifier, text, token_ids, tuple(told))
