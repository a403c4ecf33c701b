"""The tokens that a running request has reserved from its key's tokens per minute and from its
budget.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard import engine
from switchyard.app.operations.keys import ApiKey
from switchyard.app.operations.limits import Bucket, BudgetKeeper, reached

USUAL_TIMES = 4  # number of usual answers that a choice reserves at its start
SHARES = 8  # for new tokens, a request reserves at most 1/SHARES of its key's tokens per minute
EXTENSION = 64  # tokens that a running job reserves when it has used up its earlier ones


@dataclass(frozen=True, slots=True)
class Need:
    """The paid tokens that a job reserves at its start, and the limit on its new tokens."""

    identifier: str
    prompt: int
    new: int
    most_new: int  # new tokens that the job may request later
    num_rows: int  # tokens that are paid for each new token


def needs(
    key: ApiKey, jobs: Sequence[engine.Job], num_jobs: int, page_size: int, usual: float
) -> list[Need]:
    """The needs of a request's jobs: `num_jobs` for the first prompt, then as many for each further
    prompt. The first choice of a prompt reserves the whole prompt. Other choices find the prompt's
    full pages in the cache, so they reserve one page, or the whole prompt if they score the prompt.
    `usual`: the number of tokens in a typical answer.
    """
    most = math.ceil(USUAL_TIMES * usual)
    if key.tpm is not None:
        most = min(most, max(key.tpm // SHARES // len(jobs), 1))
    found = []
    for i, job in enumerate(jobs):
        prompt, num_rows = job.num_prompt_tokens, job.num_sequences
        if i % num_jobs and job.prompt_logprobs is None:
            prompt = min(prompt, page_size * num_rows)
        new, most_new = min(job.max_new_tokens, most) * num_rows, job.max_new_tokens * num_rows
        found.append(Need(job.identifier, prompt, new, most_new, num_rows))
    return found


class Reservation:
    """The tokens that the jobs of one request have reserved. `start` is called first, on the
    request thread, then `note` on the link's thread. `close` gives back the rest; further calls do
    nothing.
    """

    __slots__ = ("_allowed", "_bucket", "_budgets", "_in_bucket", "_in_budget", "_key", "_needs")

    def __init__(self, key: ApiKey, bucket: Bucket | None, budgets: BudgetKeeper | None) -> None:
        self._key = key
        self._bucket = bucket
        self._budgets = budgets if key.budget_tokens is not None else None
        self._in_bucket = 0  # tokens that are reserved in the bucket
        self._in_budget = 0
        self._needs: dict[str, Need] = {}  # the needs of jobs that have not ended
        self._allowed: dict[str, int] = {}  # paid new tokens that each of these jobs may have

    def start(self, needs: Sequence[Need]) -> None:
        """Reserves tokens for all jobs. If this method raises LimitReached or BudgetSpent, nothing
        is reserved. The reserved part of a budget may be less than the jobs need, but is enough for
        the prompts and a token for each job.
        """
        prompts = sum(need.prompt for need in needs)
        wanted = granted = prompts + sum(need.new for need in needs)
        if self._bucket is not None:
            seconds = self._bucket.reserve(wanted)
            if seconds:
                raise reached(self._key, f"{self._bucket.size} tokens a minute", seconds)
            self._in_bucket = wanted
        if self._budgets is not None:
            least = prompts + sum(min(need.num_rows, need.new) for need in needs)
            try:
                granted = self._budgets.reserve(self._key, least, wanted)
            except BaseException:
                self.close()
                raise
            self._in_budget = granted
            self._give_back_to_bucket(wanted - granted)
        self._share_out(needs, granted - prompts)

    def note(self, used: engine.Used, owed: int, paid: int) -> int:
        """Handles a report from a job. Returns how many new tokens the job may have in total.

        `owed`: computed and new tokens since the last report. `paid`: all paid tokens of the job so
        far.
        """
        if self._bucket is not None:
            self._bucket.owe(owed, owed)
            self._in_bucket -= owed
        need = self._needs.get(used.identifier)
        if need is None:
            return 0
        allowed = self._allowed[used.identifier]
        if used.reason is None:
            if used.new_tokens >= allowed:
                wanted = min(EXTENSION * need.num_rows, need.most_new - allowed)
                allowed += self._extend(max(wanted, 0))
                self._allowed[used.identifier] = allowed
            return allowed // need.num_rows
        del self._needs[used.identifier], self._allowed[used.identifier]
        reserved = need.prompt + allowed
        self._give_back_to_bucket(reserved - used.computed_tokens - used.new_tokens)
        # The rest stays reserved until the ledger has counted it.
        self._give_back_to_budget(reserved - paid)
        return allowed // need.num_rows

    def close(self) -> None:
        """Gives back everything that is still reserved. Idempotent."""
        self._give_back_to_bucket(self._in_bucket)
        self._give_back_to_budget(self._in_budget)

    def _share_out(self, needs: Sequence[Need], new: int) -> None:
        """Divides `new` tokens among the jobs. Each job gets at least one token."""
        later = sum(min(need.num_rows, need.new) for need in needs)
        for need in needs:
            later -= min(need.num_rows, need.new)
            own = min(need.new, new - later)
            new -= own
            self._needs[need.identifier], self._allowed[need.identifier] = need, own

    def _extend(self, wanted: int) -> int:
        granted = wanted
        if self._bucket is not None:
            granted = self._bucket.extend(wanted)
            self._in_bucket += granted
        if self._budgets is not None:
            in_bucket = granted
            granted = self._budgets.extend(self._key, granted)
            self._in_budget += granted
            self._give_back_to_bucket(in_bucket - granted)
        return granted

    def _give_back_to_bucket(self, tokens: int) -> None:
        if self._bucket is not None and tokens:
            self._in_bucket -= tokens
            self._bucket.owe(0, tokens)

    def _give_back_to_budget(self, tokens: int) -> None:
        if self._budgets is not None and tokens:
            self._in_budget -= tokens
            self._budgets.give_back(self._key, tokens)
