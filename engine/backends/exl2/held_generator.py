"""The library's generator, with jobs that pause while their rules aren't ready. Used on the engine
thread. Such a job keeps the logits of its next token, and isn't in any pass until the token is
drawn.
"""

from typing import Any

import torch
from exllamav2.generator import ExLlamaV2DynamicGenerator

from switchyard.engine.backends.exl.results import Result, of_library
from switchyard.engine.backends.exl2.job import Exl2Job
from switchyard.engine.backends.exl2.paging.paging_generator import PagingGenerator
from switchyard.engine.backends.exl2.steps import Step


class HeldGenerator(PagingGenerator):
    """For `Exl2Job`s only."""

    @property
    def is_waiting(self) -> bool:
        """Whether no job can continue until some job's rules are ready."""
        if self.pending_jobs or self.returning() is not None:
            return False
        return all(job.held is not None and not job.sampler.is_ready for job in self.active_jobs)

    def decoding(self) -> list[Exl2Job]:
        """The jobs in the next pass."""
        return [
            job
            for job in self.active_jobs
            if job.is_decoding and job.held is None and not job.is_short
        ]

    def held(self) -> list[Exl2Job]:
        """Returns the jobs whose logits are held, with the longest-waiting first."""
        held = [job for job in self.active_jobs if job.held is not None]
        return sorted(held, key=lambda job: job.held_at)

    def hold(self, step: Step | None) -> Step | None:
        """Returns the rows whose tokens can be drawn now, both those of `step` and those held
        earlier. Holds the other rows of `step`.
        """
        back = [(job, job.held) for job in self.held() if job.sampler.begin()]
        own = [] if step is None else step.jobs
        late = {j for j in own if j.sampler.rules and not (j.is_active and j.sampler.begin())}
        if not back and not late:
            return step
        rows: list[tuple[Exl2Job, Any]] = [*back]
        for job, _ in back:
            job.held = None
        for job, logits in () if step is None else step.rows():
            if job not in late:
                rows.append((job, logits))
            elif job.is_active:  # else it has ended
                job.hold(logits)
        return Step.of_rows(rows) if rows else None

    # With the library's step

    def iterate_by_library(self) -> list[Result]:
        results = ExLlamaV2DynamicGenerator.iterate(self)
        for job in self.held():
            job.settle_pages()
        return of_library(results)

    @torch.inference_mode()
    def draw_held(self) -> list[Result]:
        """Draws for the held jobs whose rules are ready. Call this before `iterate_by_library`."""
        results: list[Result] = []
        for job in self.held():
            if job.held is None or not job.sampler.is_ready:
                continue
            logits, job.held = job.held[:, None], None
            drawn = job.receive_logits(logits)
            if job.receive_sample(logits, *drawn, results, True)[0]:
                job.deallocate_pages()
                self.active_jobs.remove(job)
        return results
