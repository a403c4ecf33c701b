"""A generator that guesses tokens if that saves time. Used on the engine thread."""

import time
from collections.abc import Sequence
from typing import Any

import torch

from switchyard.engine.backends.exl.faults import explain
from switchyard.engine.backends.exl.results import PromptComputed, PromptScored, Result
from switchyard.engine.backends.exl2.generator import Generator
from switchyard.engine.backends.exl2.guessing.draft_model import DraftModel
from switchyard.engine.backends.exl2.guessing.guesses import Guesses
from switchyard.engine.backends.exl2.guessing.texts import OwnTexts
from switchyard.engine.backends.exl2.job import Exl2Job
from switchyard.engine.backends.exl2.steps import Input
from switchyard.engine.backends.sampling.draw import NOT_NUMBERS, Drawn

# Maximum seconds that a step waits for the masks of all jobs. Without this wait, no guess for a
# constrained job could be accepted in the step that checks it.
PATIENCE = 0.001


class GuessingGenerator(Generator):
    """The pass of a step computes the most recent token and the guessed tokens of each job. The
    step draws all tokens that were guessed right, and one more token, exactly as single-token steps
    would have done.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._guesses = Guesses(self.num_draft_tokens)
        self._source = OwnTexts() if self.draft_model is None else DraftModel(self)
        self._number = 0  # guessed in this step

    def _iterate(self) -> list[Result]:
        begin = time.perf_counter()
        jobs = self.decoding()
        self._number = 0
        results = super()._iterate()
        if jobs and not any(isinstance(one, PromptComputed | PromptScored) for one in results):
            self._guesses.note(len(jobs), self._number, time.perf_counter() - begin)
        return results

    @property
    def _looks_ahead(self) -> bool:
        """False if the step guesses, because a pass that is launched ahead can't check guesses."""
        return super()._looks_ahead and not self._choose_number(self.decoding())

    def _choose_number(self, jobs: Sequence[Exl2Job]) -> int:
        self._source.observe(jobs)
        if any(job.sampler.is_pair for job in jobs):
            return 0
        return self._guesses.number([self._source.rate(job) for job in jobs])

    def _guess(self, results: list[Result]) -> bool:
        jobs = self.decoding()
        number = self._choose_number(jobs)
        if not number or not all(job.reach(number + 2, self.pool) for job in jobs):
            return False
        held = self.hold(None)
        if held is not None:
            drawing = self._start_draw(held)
            drawn = self._draw_one_by_one(held.jobs) if drawing is None else drawing.take()
            self._receive(held, drawn, results)
        jobs = [one.job for one in self._in_rows([Input(job, 0, 0) for job in jobs])]
        guesses = self._source.guess(jobs, number)
        self._number = max(map(len, guesses))
        logits = self._check(jobs, guesses)
        self._work.drafts += sum(map(bool, guesses))
        self._take_right(jobs, guesses, logits, results)
        return True

    def _check(self, jobs: Sequence[Exl2Job], guesses: Sequence[list[int]]) -> torch.Tensor:
        """Returns logits after the latest token and after each guess, (jobs, 1 + guesses,
        vocabulary).
        """
        length = 1 + self._number
        token_ids = torch.zeros((len(jobs), length), dtype=torch.long)
        positions = []
        for row, (job, guess) in enumerate(zip(jobs, guesses, strict=True)):
            token_ids[row, : 1 + len(guess)] = torch.tensor([job.last_id(), *guess])
            positions.append(job.position())
            job.will_write(positions[-1], positions[-1] + length)
        width = (max(positions) + length - 1) // self.page_size + 1
        params = self.get_paged_params(
            len(jobs),
            torch.from_numpy(self._table[: len(jobs), :width]).contiguous(),
            torch.tensor(positions, dtype=torch.int32),
            q_len=length,
        )
        logits: torch.Tensor = self.model.forward_chunk(
            input_ids=token_ids, attn_params=params, cache=self.cache, loras=self.current_loras
        )["logits"]
        self._work.note_pass(len(jobs), len(jobs))
        return logits.to(self._device)

    def _take_right(
        self,
        jobs: Sequence[Exl2Job],
        guesses: Sequence[list[int]],
        logits: torch.Tensor,
        results: list[Result],
    ) -> None:
        """Draw for each job until the drawn token differs from the guess."""
        accepted, rows = [0] * len(jobs), [*range(len(jobs))]
        patience = PATIENCE
        for i in range(logits.shape[1]):
            if i:
                patience = _wait(patience, [jobs[row] for row in rows])
            ready = [row for row in rows if _begin(jobs[row], logits[row : row + 1, i])]
            if not ready:
                break
            drawn = self._draw_rows([jobs[row] for row in ready], logits[ready, i])
            rows = []
            for row, token_id, logprob in zip(ready, *drawn, strict=True):
                job, guess = jobs[row], guesses[row]
                if job.accept(token_id, logprob, results):
                    job.deallocate_pages()
                    self.active_jobs.remove(job)
                elif i < len(guess) and guess[i] == token_id:
                    accepted[row] += 1
                    rows.append(row)
        for job, guess, number in zip(jobs, guesses, accepted, strict=True):
            job.accepted_draft_tokens += number
            job.rejected_draft_tokens += len(guess) - number
            if job.is_active:
                self._source.note(job, len(guess), number)

    def _draw_rows(self, jobs: Sequence[Exl2Job], logits: torch.Tensor) -> Drawn:
        """Draws for each job. If one job fails, the others still draw."""
        try:
            return self.draw.start([job.sampler for job in jobs], logits, None).take()
        except BaseException as error:
            if explain(error) is not error:  # the failure concerns all jobs
                raise
        found = Drawn([], [])
        for row, job in enumerate(jobs):
            try:
                one = self.draw.start([job.sampler], logits[row : row + 1], None).take()
            except BaseException as error:
                job.sampler.error = error
                one = Drawn([NOT_NUMBERS], [None])
            found.token_ids.extend(one.token_ids)
            found.logprobs.extend(one.logprobs)
        return found


def _begin(job: Exl2Job, logits: torch.Tensor) -> bool:
    """Returns whether the job's next token can be drawn; if not, holds its logits."""
    if job.sampler.begin():
        return True
    job.hold(logits)
    return False


def _wait(patience: float, jobs: Sequence[Exl2Job]) -> float:
    """Wait for the jobs' rules for at most `patience` seconds. Returns the seconds that are
    left.
    """
    for rule in (rule for job in jobs for rule in job.sampler.rules):
        if patience > 0 and not rule.is_ready:
            begin = time.perf_counter()
            rule.wait(patience)
            patience -= time.perf_counter() - begin
    return patience
