"""Chooses how many tokens a step guesses, based on the measured times of earlier steps. Does only
arithmetic.
"""

from collections.abc import Sequence

WEIGHT = 0.2  # of a measured step in the means
MARGIN = 1.03  # the speed-up that guesses must bring
LIKELY = 0.3  # if a job's guesses are right this often, they may be worth a try
FIRST, LONGEST = 64, 1024  # steps without guesses before a try
RENEWED = 64  # steps with guesses before one without, which is measured


class Guesses:
    """Compares the tokens per second with and without guesses, for each number of jobs.

    A step with guesses takes as long as a step without guesses, plus a roughly constant time for
    each token guessed per job. Both times are measured. If guesses save no time, they are tried
    again after some steps, then after twice as many, and so on.
    """

    def __init__(self, most: int) -> None:
        """`most`: the maximum number of tokens guessed for a job in a step."""
        self.most = most
        self._plain: dict[int, float] = {}  # seconds, by number of jobs
        # Seconds for each token guessed for all jobs. None after the first step, which may compile.
        self._more: dict[int, float | None] = {}
        self._num_plain = 0  # steps since the last one with guesses
        self._num_guessed = 0  # steps since the last one without
        self._pause = FIRST

    def number(self, rates: Sequence[float]) -> int:
        """Returns the number of tokens to guess in the next step, 0 to `most`. `rates`: for each
        job, the share of guesses that are right, from 0 to 1, or 0 for a job without a guess.
        """
        size = len(rates).bit_length()
        if max(rates, default=0.0) <= 0 or size not in self._plain:
            return 0
        if self._num_guessed >= RENEWED:
            return 0
        number = self._best(rates, self._plain[size], self._more.get(size) or 0.0)
        if not number and max(rates) >= LIKELY and self._num_plain >= self._pause:
            return self.most
        return number

    def _best(self, rates: Sequence[float], plain: float, more: float) -> int:
        best, found = len(rates) / plain * MARGIN, 0
        tokens, likely = float(len(rates)), [1.0] * len(rates)
        for number in range(1, self.most + 1):
            likely = [a * b for a, b in zip(likely, rates, strict=True)]
            tokens += sum(likely)
            speed = tokens / (plain + number * more)
            if speed > best:
                best, found = speed, number
        return found

    def note(self, num_jobs: int, number: int, seconds: float) -> None:
        """Note that a step of `num_jobs` jobs, with `number` guessed tokens for each, took
        `seconds`.
        """
        size = num_jobs.bit_length()
        if not number:
            self._num_plain += 1
            self._num_guessed = 0
            old = self._plain.get(size, seconds)
            self._plain[size] = old + WEIGHT * (seconds - old)
            return
        was_tried = self._num_plain >= self._pause
        self._pause = min(2 * self._pause, LONGEST) if was_tried else FIRST
        self._num_plain = 0
        self._num_guessed += 1
        if size not in self._more:
            self._more[size] = None
            return
        more = max(seconds - self._plain.get(size, seconds), 0.0) / number
        before = self._more[size]
        self._more[size] = more if before is None else before + WEIGHT * (more - before)
