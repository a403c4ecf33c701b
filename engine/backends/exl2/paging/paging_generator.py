"""The library's generator, with jobs that take pages as they need them. Used on the engine
thread.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from switchyard.engine.backends.exl.loaded import Passes
from switchyard.engine.backends.exl.results import JobMoved
from switchyard.engine.backends.exl2.paging.paged_job import PagedJob
from switchyard.engine.backends.exl2.paging.pool import Pool
from switchyard.engine.backends.exl2.prompt_generator import PromptGenerator
from switchyard.engine.job import Job
from switchyard.engine.stats import Work


class PagingGenerator(PromptGenerator):
    """For `PagedJob`s only. If no page is left for a job, one of the jobs is parked: it releases
    its pages, and returns before new jobs of its priority start.
    """

    def __init__(
        self, device: torch.device, passes: Passes | None, work: Work, **settings: Any
    ) -> None:
        """`work`: the counters to increment; `settings`: settings of the library's generator."""
        self.parked: list[PagedJob] = []
        self._lacks_pages = False  # whether a job is short  # same: the first iteration resets it
        self._moves: list[JobMoved] = []  # not yet reported
        super().__init__(device, passes, **settings)
        self._work = work

    def reset_page_table(self) -> None:
        super().reset_page_table()
        self.pool = Pool(self)

    def all_jobs(self) -> list[PagedJob]:
        return [*self.active_jobs, *self.pending_jobs, *self.parked]

    def num_remaining_jobs(self) -> int:
        return len(self.active_jobs) + len(self.pending_jobs) + len(self.parked)

    def cancel(self, job: PagedJob) -> None:
        if job in self.parked:
            self.parked.remove(job)
            job.deallocate_pages()
        else:
            super().cancel(job)

    def clear_queue(self) -> None:
        for job in [*self.parked]:
            self.cancel(job)
        super().clear_queue()

    def has_room(self, job: Job) -> bool:
        """Whether there is a place in the batch for the job, free pages for its start, and a share
        of the next iteration's budget of prompt tokens. Half of the pages that the running jobs are
        expected to need must stay free. A job has no room while a job of the same or a higher
        priority is parked.
        """
        if any(other.job.priority >= job.priority for other in self.parked):
            return False
        pending, active = self.pending_jobs, self.active_jobs
        newcomers = [
            *pending,
            *(other for other in active if not other.is_decoding),  # same: others have none left
        ]
        num_left = sum(min(other.num_left, self.max_chunk_size) for other in newcomers)
        num_sequences = sum(len(other.sequences) for other in self.all_jobs())
        starting = [job, *(other.job for other in pending)]
        num_free = len(self.unreferenced_pages) - sum(map(self._pages_to_start, starting))
        return (
            num_sequences + job.num_sequences <= self.max_batch_size
            and num_free >= self._expected_tokens() // (2 * self.page_size)
            and self.budget.has_room(num_left, self.most_prompt_tokens())
        )

    def _pages_to_start(self, job: Job) -> int:
        return job.num_pages(self.page_size, min(job.max_new_tokens, 1) + self.num_draft_tokens)

    def _expected_tokens(self) -> int:
        """The number of new tokens that started jobs are still expected to generate."""
        return sum(
            len(other.sequences)
            * max(other.job.expected_tokens - other.num_sampled, 0)  # same: one more is nothing
            for other in (*self.active_jobs, *self.pending_jobs)
        )

    def returning(self) -> PagedJob | None:
        """Returns the first parked job of the highest priority, if it can return now. Running jobs
        that lack a page come first.
        """
        if not self.parked or self.pending_jobs or self._lacks_pages:
            return None
        job = min(self.parked, key=lambda one: (-one.job.priority, one.serial_number))
        has_pages = job.current_new_pages_required() <= len(self.unreferenced_pages)
        is_next = all(other.is_decoding for other in self.active_jobs)
        return job if has_pages and is_next else None

    def start_returning(self) -> None:
        """Starts a parked job if one can return. Call this before `iterate_start_jobs`."""
        if (job := self.returning()) is not None:
            self.parked.remove(job)
            self.pending_jobs.append(job)
            self._moves.append(JobMoved(job.identifier, False))

    def with_pages(self, jobs: Sequence[Any], num_tokens: int) -> list[Any]:
        """Returns the members of `jobs` that have pages for `num_tokens` tokens, beginning with the
        most recent token. Parks jobs, possibly some of these, to make room. No draw may be in
        progress.
        """
        for job in jobs:
            while job.is_active and not job.reach(num_tokens, self.pool):
                other = self._choose()
                if other is None:
                    break
                self.park(other)
        for job in jobs:
            job.is_short = job.is_active and not job.reach(num_tokens, self.pool)
            self._lacks_pages |= job.is_short
        return [job for job in jobs if job.is_active and not job.is_short]

    def retry_short(self) -> None:
        """Lets jobs that lack a page try again if there is one, or if a job can be parked now. Call
        this after `start_returning`.
        """
        if not self._lacks_pages:  # same: only saves time
            return
        if self.unreferenced_pages or self._choose() is not None:
            self._lacks_pages = False
            for job in self.active_jobs:
                job.is_short = False

    def park(self, job: PagedJob) -> None:
        self.launch_prompts()
        job.park()
        self.active_jobs.remove(job)
        self.parked.append(job)
        self._work.preempted += 1
        self._moves.append(JobMoved(job.identifier, True))

    def take_moves(self) -> list[JobMoved]:
        """Returns the jobs that were parked or have returned since the last call."""
        moves, self._moves = self._moves, []
        return moves

    def _choose(self) -> PagedJob | None:
        """Returns the job to park to free a page. Among the jobs of the lowest priority, this is
        the newest job of the client with the most pages. Returns None if no job can be parked now.
        """
        others = [job for job in self.active_jobs if job.is_scored]
        lowest = min((job.job.priority for job in others), default=0)  # same: 0, others are none
        choice = [job for job in others if job.job.priority == lowest and job.may_be_parked]
        pages: Counter[str] = Counter()
        for job in self.active_jobs:
            pages[job.job.client] += job.num_held_pages
        return max(choice, key=lambda job: (pages[job.job.client], job.serial_number), default=None)
