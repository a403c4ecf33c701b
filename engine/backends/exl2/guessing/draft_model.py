"""Guesses made by a smaller model, whose cache uses the same pages as the main model's. Used on the
engine thread.
"""

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from switchyard.engine.backends.exl2.job import Exl2Job

FIRST, LEAST = 0.7, 0.3  # the rate of a new job, and the lowest rate
WEIGHT = 0.125  # of a step in a job's rate
MOST_LAG = 64  # tokens


class DraftModel:
    def __init__(self, generator: Any) -> None:
        self._generator = generator
        self._rates: weakref.WeakKeyDictionary[Exl2Job, float] = weakref.WeakKeyDictionary()

    def observe(self, jobs: Sequence[Exl2Job]) -> None:
        """Before a step of `jobs`, let the draft model catch up with each job that is far ahead of
        it.
        """
        for job in jobs:
            if job.position() - job.drafted[0] >= MOST_LAG:
                self._follow(job)

    def rate(self, job: Exl2Job) -> float:
        """Returns the share of recent guesses for `job` that were right. The share never falls so
        low that guessing stops for good.
        """
        return max(self._rates.get(job, FIRST), LEAST)

    def guess(self, jobs: Sequence[Exl2Job], number: int) -> list[list[int]]:
        """Returns `number` tokens for each job. Each job must have pages for these tokens and for
        one more token.
        """
        for job in jobs:
            self._follow(job)
        token_ids = torch.tensor([[job.last_id()] for job in jobs])
        positions = torch.tensor([job.position() for job in jobs], dtype=torch.int32)
        pages = _pages([(job, 0) for job in jobs])
        most, found = self._generator.model.config.vocab_size - 1, list[torch.Tensor]()
        for i in range(number):
            logits = self._forward(token_ids, pages, positions + i)["logits"]
            # The draft model may have more logits than the model has tokens.
            token_ids = logits[:, -1].argmax(-1, keepdim=True).cpu().clamp_(0, most)
            found.append(token_ids)
        # The last guess is computed too, because all guesses may be right.
        self._forward(token_ids, pages, positions + number, preprocess_only=True)
        for job in jobs:
            job.drafted = [job.position() + number + 1]
        rows: list[list[int]] = torch.cat(found, 1).tolist()
        return rows

    def note(self, job: Exl2Job, number: int, accepted: int) -> None:
        """Note that the job drew `accepted` of `number` guessed tokens."""
        rate = accepted / min(accepted + 1, number)
        old = self._rates.get(job, FIRST)
        self._rates[job] = old + WEIGHT * (rate - old)
        job.drafted = [min(job.drafted[0], job.position())]

    def _follow(self, job: Exl2Job) -> None:
        """Compute keys and values of tokens that were not guessed."""
        chunk = self._generator.max_chunk_size
        for index in range(len(job.sequences)):
            end, pages = job.position(index), _pages([(job, index)])
            for start in range(job.drafted[index], end, chunk):
                stop = min(start + chunk, end)
                token_ids = torch.tensor([job.token_ids(start, stop, index)])
                places = torch.tensor([start], dtype=torch.int32)
                self._forward(token_ids, pages, places, preprocess_only=True)
            job.drafted[index] = max(job.drafted[index], end)

    def _forward(
        self,
        token_ids: torch.Tensor,
        pages: torch.Tensor,
        positions: torch.Tensor,
        preprocess_only: bool = False,
    ) -> Any:
        generator = self._generator
        return generator.draft_model.forward_chunk(
            input_ids=token_ids,
            attn_params=generator.get_paged_params(
                len(positions), pages, positions, token_ids.shape[1]
            ),
            cache=generator.draft_cache,
            preprocess_only=preprocess_only,
        )


def _pages(sequences: Sequence[tuple[Exl2Job, int]]) -> torch.Tensor:
    """Returns the cache pages of `sequences`, (sequences, pages), int32."""
    tables = [
        torch.tensor([page.page_index for page in job.sequences[i].allocated_pages])
        for job, i in sequences
    ]
    padded = torch.nn.utils.rnn.pad_sequence(tables, batch_first=True)
    return padded.to(torch.int32)
