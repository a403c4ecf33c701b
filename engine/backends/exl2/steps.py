"""Forward passes of one token for each job, and their logits."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from switchyard.engine.backends.exl2.job import Exl2Job


class Input(NamedTuple):
    job: Exl2Job
    token_id: int
    ahead: int  # tokens that the job has not accepted yet, including this one


class Step(NamedTuple):
    """A forward pass that is running or done, or rows of several such passes."""

    jobs: list[Exl2Job]
    logits: torch.Tensor  # (jobs, then negative prompts of pairs; padded vocabulary)

    def rows(self) -> Iterator[tuple[Exl2Job, torch.Tensor]]:
        """Yields each job with its logits, (1, padded vocabulary), or (2, padded vocabulary) for a
        pair.
        """
        second = len(self.jobs)
        for i, job in enumerate(self.jobs):
            row = self.logits[i : i + 1]
            if job.sampler.is_pair:
                row = torch.cat((row, self.logits[second : second + 1]))
                second += 1
            yield job, row

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[Exl2Job, torch.Tensor]]) -> "Step":
        firsts, seconds = ([logits[i : i + 1] for _, logits in rows] for i in (0, 1))
        return cls([job for job, _ in rows], torch.cat([*firsts, *seconds]))
