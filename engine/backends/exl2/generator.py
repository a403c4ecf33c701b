"""The library's generator with our own decode step, which produces the same results with less work
on the host.

The library handles one job after another, with tensor operations for each token. This step handles
all jobs at once, on the device or with plain integers. requirements.txt pins the version of
exllamav2.
"""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from switchyard.engine.backends.exl.faults import explain
from switchyard.engine.backends.exl.loaded import Passes
from switchyard.engine.backends.exl.results import JobBroken, Result, of_library
from switchyard.engine.backends.exl2.held_generator import HeldGenerator
from switchyard.engine.backends.exl2.job import Exl2Job
from switchyard.engine.backends.exl2.steps import Input, Step
from switchyard.engine.backends.sampling.draw import NOT_NUMBERS, Draw, Drawing, Drawn
from switchyard.engine.backends.sampling.transfer import upload
from switchyard.engine.stats import Work


class Generator(HeldGenerator):
    """For `Exl2Job`s only.

    If the device works asynchronously, the next pass is launched before the host handles a step's
    tokens, and usually before the host knows them. If a job turns out to have ended, its row in
    that pass is wasted. A job whose rules aren't ready keeps its logits, and isn't in any pass
    until its token is drawn. If jobs can't share the cache as pages, the generator uses the
    library's step.
    """

    def __init__(
        self,
        device: torch.device,
        vocab_size: int,
        passes: Passes | None,
        work: Work,
        **settings: Any,
    ) -> None:
        """`vocab_size`: the tokenizer's vocabulary size; `work`: the counters to increment;
        `settings`: settings of the library's generator.
        """
        super().__init__(device, passes, work, **settings)
        if passes is not None:
            passes.capture(vocab_size)
        # The library's own step returns logits on the host.
        draws_on = device if self.paged else torch.device("cpu")
        few = None if passes is None else passes.draw
        self.draw = Draw(vocab_size, draws_on, self.model.config.vocab_size, few)
        self._step: Step | None = None  # launched; its tokens are not drawn yet
        max_pages = -(-self.max_seq_len // self.page_size)
        num_rows = self.max_batch_size
        self._table = np.zeros((num_rows, max_pages), dtype=np.int32)  # pages of each row's job
        self._rows: list[Exl2Job | None] = [None] * num_rows  # the job of each row of `_table`

    def iterate(self) -> list[Result]:
        self.budget.begin(self.most_prompt_tokens())
        if not self.paged:
            drawn = self.draw_held()
            num_rows = sum(len(job.sequences) for job in self.decoding())
            self._work.note_pass(num_rows, num_rows)
            rest = self.iterate_by_library()
            return [*drawn, *self.take_moves(), *rest]
        try:
            with torch.inference_mode():
                try:
                    rest = self._iterate()
                finally:
                    self.launch_prompts()
            return [*self.take_moves(), *rest]
        except BaseException:
            self._step = None  # it may follow tokens that no job has
            raise

    def prove(self, job: Exl2Job) -> None:
        """Run one job on its own. The page table is empty afterwards. If the job fails, raises its
        error.
        """
        self.enqueue(job)
        try:
            while self.num_remaining_jobs():
                for result in self.iterate():
                    if isinstance(result, JobBroken):
                        raise result.error
        except Exception as error:
            raise explain(error) from error
        self.reset_page_table()

    def repair(self) -> None:
        """Undo the page updates of a failed decode step.

        The generator advances a page's `kv_position` before the forward pass that fills the page.
        Without this repair, the generator would hang at the next page boundary, or reuse keys that
        were never computed.
        """
        for job in self.active_jobs:
            job.held = None  # its logits are computed again
            for sequence in job.sequences:
                for i, page in enumerate(sequence.allocated_pages or []):
                    if page.ref_count == 1:
                        written = max(sequence.kv_position - i * self.page_size, 0)
                        page.kv_position = min(page.kv_position, written)

    def _iterate(self) -> list[Result]:
        started: list[dict[str, Any]] = []
        self.start_returning()
        self.retry_short()
        self.iterate_start_jobs(started)
        results = of_library(started)
        self._prefill(results)
        step, self._step = self._step, None
        if step is None or not any(job.is_active for job in step.jobs):
            if self._guess(results):
                return results
            ready = self.with_pages(self.decoding(), 1)
            step = self._launch([Input(job, job.last_id(), 0) for job in ready])
        step = self.hold(step)
        if step is None:
            return results
        drawing = self._start_draw(step)
        looks_ahead = self._looks_ahead
        if looks_ahead and drawing is not None:
            self._step = self._launch_behind(step, drawing.token_ids)
        drawn = self._draw_one_by_one(step.jobs) if drawing is None else drawing.take()
        if looks_ahead and self._step is None:
            self._step = self._launch_ahead(step, drawn.token_ids)
        self._receive(step, drawn, results)
        return results

    @property
    def _looks_ahead(self) -> bool:
        """Whether the next pass is launched before the host handles this step's tokens."""
        return self.is_overlapping

    def _guess(self, results: list[Result]) -> bool:
        """Run a step that guesses tokens, if that saves time. Returns whether it ran."""
        return False

    def _start_draw(self, step: Step) -> Drawing | None:
        """Start a draw. Returns None if one of the jobs fails; the caller then draws the jobs'
        tokens one by one.
        """
        try:
            return self._start_rows(step)
        except BaseException as error:
            if explain(error) is not error:  # the failure concerns all jobs
                raise
        return None

    def _start_rows(self, step: Step) -> Drawing:
        num_jobs = len(step.jobs)
        logits = step.logits.to(self._device)  # from another GPU, or the host
        negative = logits[num_jobs:] if len(logits) > num_jobs else None
        return self.draw.start([job.sampler for job in step.jobs], logits[:num_jobs], negative)

    def _draw_one_by_one(self, jobs: Sequence[Exl2Job]) -> Drawn:
        """Draws for each job separately, so that only the faulty job fails."""
        drawn = Drawn([], [])
        for job in jobs:
            if not job.is_active:  # its pages may belong to another job
                drawn.token_ids.append(NOT_NUMBERS)
                drawn.logprobs.append(None)
                continue
            step = self._launch([Input(job, job.last_id(), 0)])
            assert step is not None
            try:
                token_ids, logprobs = self._start_rows(step).take()
            except BaseException as error:
                job.sampler.error = error
                token_ids, logprobs = [NOT_NUMBERS], [None]
            drawn.token_ids.extend(token_ids)
            drawn.logprobs.extend(logprobs)
        return drawn

    def _receive(self, step: Step, drawn: Drawn, results: list[Result]) -> None:
        ended = [
            job
            for job, token_id, logprob in zip(step.jobs, *drawn, strict=True)
            if job.is_active and job.accept(token_id, logprob, results)  # else cancelled
        ]
        for job in ended:
            job.deallocate_pages()
            self.active_jobs.remove(job)

    def _launch_behind(self, step: Step, token_ids: torch.Tensor) -> Step | None:
        """Launches the pass after `step`, whose tokens are on the device and not yet known to the
        host.
        """
        decoding = self.decoding()
        if not self._takes_from_device() or any(job.sampler.is_pair for job in decoding):
            return None
        drawn = {job: i for i, job in enumerate(step.jobs)}
        inputs = [
            Input(job, 0, 1) if job in drawn else Input(job, job.last_id(), 0)
            for job in decoding
            if not (job in drawn and job.is_at_last)
        ]
        if not inputs:
            return None
        inputs = self._in_rows(inputs)
        positions = self._positions(inputs)
        if positions is None:
            return None
        known = [one.token_id for one in inputs if not one.ahead]
        places = iter(range(len(drawn), len(drawn) + len(known)))
        order = [drawn[one.job] if one.ahead else next(places) for one in inputs]
        found = token_ids.clamp(min=0)
        if known:
            found = torch.cat((found, upload(known, torch.long, self._device)))
        if order != [*range(len(found))]:
            found = found[upload(order, torch.long, self._device)]
        return self._pass([one.job for one in inputs], found, positions)

    def _launch_ahead(self, step: Step, token_ids: Sequence[int]) -> Step | None:
        """Launches the pass after tokens that their jobs have not accepted yet."""
        drawn = dict(zip(step.jobs, token_ids, strict=True))
        inputs: list[Input] = []
        for job in self.decoding():
            token_id = drawn.get(job)
            if token_id is None:
                inputs.append(Input(job, job.last_id(), 0))
            elif not job.ends_with(token_id):
                inputs.append(Input(job, token_id, 1))
        return self._launch(inputs)

    def _positions(self, inputs: Sequence[Input]) -> list[int] | None:
        """The positions of the inputs' keys and values, or None if a page for one of them is
        missing. In that case the next step waits for the host, which may park a job.
        """
        positions = [one.job.position() + one.ahead for one in inputs]
        for row, (one, position) in enumerate(zip(inputs, positions, strict=True)):
            if position % self.page_size:  # nearly always
                continue
            if not one.job.reach_to(position + 1, self.pool):
                return None
            one.job.will_write(position, position + 1)
            if one.job.is_moved:
                self._take_row(row, one.job)
        return positions

    def _launch(self, inputs: Sequence[Input]) -> Step | None:
        """Launches a forward pass with one token of each job. Returns None if there are no jobs, or
        if a page is missing.
        """
        if not inputs:
            return None
        inputs = self._in_rows(inputs)
        jobs = [one.job for one in inputs]
        token_ids = [one.token_id for one in inputs]
        positions = self._positions(inputs)
        if positions is None:
            return None
        for job, token_id, ahead in inputs:
            if job.sampler.is_pair:
                position = job.position(1) + ahead
                if not job.reach_to(position + 1, self.pool, 1):
                    return None
                self._set_row(len(positions), job.sequences[1])
                token_ids.append(token_id if ahead else job.last_id(1))
                job.will_write(position, position + 1, 1)
                positions.append(position)
        return self._pass(jobs, torch.tensor(token_ids), positions)

    def _pass(self, jobs: list[Exl2Job], token_ids: torch.Tensor, positions: Sequence[int]) -> Step:
        """`token_ids`: (rows,), on the host or the device."""
        num_rows, width = len(positions), max(positions) // self.page_size + 1
        logits = self._forward(token_ids, positions, self._table[:num_rows, :width])
        self._work.note_pass(num_rows, self._graphs.num_rows if self._graphs else num_rows)
        return Step(jobs, logits[:, 0])

    def _takes_from_device(self) -> bool:
        """Whether a pass can embed tokens that are on the device."""
        return self._device.type == "cpu" or self._graphs is not None

    def _forward(
        self, token_ids: torch.Tensor, positions: Sequence[int], pages: np.ndarray
    ) -> torch.Tensor:
        """Returns logits, (rows, 1, padded vocabulary). `pages`: cache pages, (rows, pages)."""
        if self._graphs is not None:
            waiting = self._waiting
            if waiting is not None and not self._graphs.can_join(waiting, *pages.shape):
                self.launch_prompts()
            found = self._graphs.run(token_ids, positions, pages, self._waiting)
            self._waiting = None
            return found
        params = self.get_paged_params(
            len(positions),
            torch.from_numpy(pages).contiguous(),
            torch.tensor(positions, dtype=torch.int32),
            q_len=1,
        )
        logits: torch.Tensor = self.model.forward_chunk(
            input_ids=token_ids[:, None],
            attn_params=params,
            cache=self.cache,
            loras=self.current_loras,
        )["logits"]
        return logits

    def _in_rows(self, inputs: Sequence[Input]) -> list[Input]:
        """Order the inputs so that jobs keep their rows in the table where possible."""
        ordered: list[Input | None] = [None] * len(inputs)
        others: collections.deque[Input] = collections.deque()
        for one in inputs:
            row = one.job.row
            if row < len(inputs) and self._rows[row] is one.job:
                ordered[row] = one
                if one.job.is_moved:
                    self._take_row(row, one.job)
            else:
                others.append(one)
        for row, taken in enumerate(ordered):
            if taken is None:
                # In order: a request's first choice gets its text first.
                ordered[row] = one = others.popleft()
                self._take_row(row, one.job)
        return [one for one in ordered if one is not None]

    def _take_row(self, row: int, job: Exl2Job) -> None:
        self._set_row(row, job.sequences[0])
        self._rows[row] = job
        job.row, job.is_moved = row, False

    def _set_row(self, row: int, sequence: Any) -> None:
        self._rows[row] = None
        pages = sequence.allocated_pages
        self._table[row, : len(pages)] = [page.page_index for page in pages]
