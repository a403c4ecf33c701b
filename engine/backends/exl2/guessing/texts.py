"""Guesses each job's next tokens from the n-grams of its own text. Used on the engine thread."""

import weakref
from collections.abc import Sequence

from switchyard.engine.backends.exl2.guessing.ngrams import Ngrams
from switchyard.engine.backends.exl2.job import Exl2Job

MOST_NEW = 1024  # tokens of a prompt to read before a step; this takes a few milliseconds


class OwnTexts:
    def __init__(self) -> None:
        self._texts: weakref.WeakKeyDictionary[Exl2Job, Ngrams] = weakref.WeakKeyDictionary()

    def observe(self, jobs: Sequence[Exl2Job]) -> None:
        """Called before a step of `jobs`."""
        left = MOST_NEW
        for job in jobs:
            text = self._texts.get(job)
            if text is None:
                text = self._texts[job] = Ngrams()
            start, num_prompt = len(text), len(job.job.prompt)
            end = min(job.num_tokens, start + left)
            if start < num_prompt:
                end = min(end, num_prompt)
            if start < end:
                text.add(job.token_ids(start, end), is_counted=start >= num_prompt)
                left -= end - start

    def rate(self, job: Exl2Job) -> float:
        """Returns the share of recent tokens that were the expected ones, or 0.0 if no token is
        expected now.
        """
        text = self._texts.get(job)
        return text.rate if text is not None and len(text) == job.num_tokens else 0.0

    def guess(self, jobs: Sequence[Exl2Job], number: int) -> list[list[int]]:
        """Returns guesses for each job's next tokens, at most `number` and possibly none."""
        return [self._texts[job].guess(number) if self.rate(job) else [] for job in jobs]

    def note(self, job: Exl2Job, number: int, accepted: int) -> None:
        """Does nothing, because the rate already counts all tokens, guessed or not."""
