"""The account of a request: the key that pays for it, the tokens of its jobs, and when the request
ends.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from switchyard import engine
from switchyard.app.operations.keys import ApiKey
from switchyard.app.operations.limits import Quota
from switchyard.app.operations.reservation import Reservation, needs

Phase = Literal["pending", "prefill", "decode"]

# The payer of requests without an API key: the host application, or no payer
HOST, NO_KEY = "host", "none"

ACCOUNT = "switchyard.account"  # key in the environ of the account's request


def account_of(environ: Mapping[str, Any]) -> "Account | None":
    """The account of the request with this environ. None if the application keeps no accounts."""
    account: Account | None = environ.get(ACCOUNT)
    return account


class Recorder(Protocol):
    """A recorder of accounts, such as the access log, the metrics or the ledger."""

    def begin(self, account: "Account") -> None:
        """Called when the account's jobs have been submitted. Runs on a request thread."""

    def end(self, account: "Account") -> None:
        """Called when the account closes, on a request thread or the alarms' thread."""


@dataclass(frozen=True, slots=True)
class Consumption:
    """Times and paid tokens of all jobs of a request. Times are in seconds. None means unknown."""

    queue: float | None = None  # the longest wait of a job
    first_token: float | None = None  # from submission to the first token of any job
    # Each prompt once, plus the parts that further choices have computed again.
    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # the part of the prompt tokens that came from the cache
    new_tokens: int | None = None
    finish_reason: str | None = None  # the reasons of several choices are joined by commas


UNKNOWN = Consumption()


class Account:
    """The account of one request. The account closes when the answer and all jobs have ended. If
    the client leaves, the jobs end after the answer.
    """

    __slots__ = (
        "_firsts",
        "_is_answered",
        "_is_inside",
        "_kind",
        "_lock",
        "_num_left",
        "_recorders",
        "_reservation",
        "begun",
        "consumption",
        "ended",
        "gone",
        "has_response",
        "identifiers",
        "is_generation",
        "is_host",
        "is_quiet",
        "is_streamed",
        "model",
        "num_bytes",
        "num_jobs",
        "prompt_tokens",
        "quota",
        "said",
        "tokens",
        "used",
    )

    def __init__(self, recorders: Sequence[Recorder] = ()) -> None:
        self.begun = time.monotonic()
        self.ended = 0.0
        self.has_response = False  # whether there is a response whose closing ends the answer
        self.quota: Quota | None = None  # the quota of the account's key
        self.model = ""
        self.is_streamed = False
        self.identifiers: Sequence[str] = ()  # the identifiers of the account's jobs
        self.num_jobs = 1  # jobs for each prompt
        # Tokens of all prompts, each counted once; a guided job has two prompts.
        self.prompt_tokens = 0
        self.tokens = 0  # prompt and new tokens used so far
        self.used: dict[str, engine.Used] = {}  # the engine's latest report for each job
        self.consumption = UNKNOWN  # set when the account closes
        self.said: dict[str, Any] = {}  # fields of the request for the recorders
        self.is_quiet = False  # whether this is a health probe, which logs and metrics leave out
        self.num_bytes = 0  # bytes of the answer's body
        self.gone: Phase | None = None  # the phase of the jobs when the client left
        self.is_generation = False  # whether the request's route generates
        self.is_host = False  # whether the host application itself made the request
        self._firsts: frozenset[str] = frozenset()  # the first job of each prompt
        self._recorders = recorders
        self._is_inside = False
        self._kind = ""  # the request's kind, for the usual answers of its key
        self._reservation: Reservation | None = None  # only for a key with limits on tokens
        self._lock = threading.Lock()  # guards the fields below
        self._num_left = 0  # jobs that have not ended
        self._is_answered = False

    # Request thread

    @property
    def key(self) -> ApiKey | None:
        return None if self.quota is None else self.quota.key

    @property
    def payer(self) -> str:
        """The name to which the account's usage is charged: the name of a key, HOST or NO_KEY."""
        if self.is_host:
            return HOST
        return NO_KEY if self.key is None else self.key.name

    def another(self) -> "Account":
        """A new account, without a quota yet, for one of several generations on a connection."""
        return Account(self._recorders)

    def enter(self) -> None:
        """Counts the request toward its key's quota, and takes one of the key's places for
        concurrent requests. The account gives the place back when it closes. Raises LimitReached.
        """
        assert self.quota is not None
        self.quota.enter()
        self._is_inside = True
        self.quota.count_request()

    def reserve(self, jobs: Sequence[engine.Job], num_jobs: int, kind: str, page_size: int) -> None:
        """Reserves tokens for the jobs, which are in the same order as for `expect`. Raises
        LimitReached, BudgetSpent.

        `kind`: the kind of the request. Each kind has its own typical answer length.
        """
        quota = self.quota
        if not self._is_inside or quota is None:
            return
        self._kind = kind
        if quota.key.tpm is None and quota.key.budget_tokens is None:
            return
        usual = quota.usual.of(quota.key.name, kind)
        reservation = Reservation(quota.key, quota.tokens, quota.budgets)
        reservation.start(needs(quota.key, jobs, num_jobs, page_size, usual))
        self._reservation = reservation

    def expect(
        self, model: str, jobs: Sequence[engine.Job], num_jobs: int, is_streamed: bool
    ) -> None:
        """Announces jobs before they are submitted: `num_jobs` for the first prompt, then as many
        for each further prompt.
        """
        identifiers = [job.identifier for job in jobs]
        self.model, self.identifiers, self.num_jobs = model, identifiers, num_jobs
        self.is_streamed = is_streamed
        self._firsts = frozenset(identifiers[::num_jobs])
        self.prompt_tokens = sum(job.num_prompt_tokens for job in jobs[::num_jobs])
        with self._lock:
            self._num_left += len(identifiers)

    def submitted(self) -> None:
        """Notes that the announced jobs were submitted."""
        for recorder in self._recorders:
            recorder.begin(self)

    def withdraw(self) -> None:
        """Notes that the announced jobs were refused."""
        self._give_back()
        with self._lock:
            self._num_left -= len(self.identifiers)
        self.identifiers = ()

    def sent(self, num_bytes: int) -> None:
        """Notes how many bytes of the body were sent."""
        self.num_bytes = num_bytes

    def leave(self, has_begun: bool) -> None:
        """Notes that the client left before the end. `has_begun`: whether the answer had text."""
        self.gone = "decode" if has_begun else "prefill" if self.used else "pending"

    def answered(self) -> None:
        """Notes that the answer has ended. Idempotent."""
        with self._lock:
            was_answered, self._is_answered = self._is_answered, True
            is_over = not (was_answered or self._num_left)
        if not was_answered:
            self.ended = time.monotonic()
        if is_over:
            self._close()

    # Link's thread

    def note(self, used: engine.Used) -> int | None:
        """Notes a job's use of tokens. Returns how many new tokens the job may have; None means any
        number. May wait briefly for locks.
        """
        before = self.used.get(used.identifier)
        self.used[used.identifier] = used
        owed = used.computed_tokens + used.new_tokens
        if before is not None:
            owed -= before.computed_tokens + before.new_tokens
        most = None
        if self._reservation is not None:
            most = self._reservation.note(used, owed, self._paid(used))
        elif self.quota is not None and self.quota.tokens is not None:
            self.quota.tokens.owe(owed)
        self.tokens += self._paid(used) - (0 if before is None else self._paid(before))
        if used.reason is not None:
            self._note_answer(used)
            with self._lock:
                self._num_left -= 1
                is_over = self._is_answered and not self._num_left
            if is_over:
                engine.ALARMS.set(0.0, self._close)
        return most

    def _note_answer(self, used: engine.Used) -> None:
        if self._is_inside and self.quota is not None and used.reason in ("stop", "length"):
            num = used.new_tokens // used.num_sequences
            self.quota.usual.note(self.quota.key.name, self._kind, num)

    def _paid_prompt(self, used: engine.Used) -> int:
        """The prompt tokens that a job pays for. The first choice of a prompt pays for all of them;
        further choices pay only for prompt tokens that they compute again.
        """
        return used.prompt_tokens if used.identifier in self._firsts else used.computed_tokens

    def _paid(self, used: engine.Used) -> int:
        return self._paid_prompt(used) + used.new_tokens

    # Alarms' thread, or a request thread

    def _close(self) -> None:
        if self._is_inside and self.quota is not None:
            self.quota.leave()
        self.consumption = self._consumed()
        for recorder in self._recorders:
            recorder.end(self)
        # Called after the ledger has counted the tokens, so that never too few count.
        self._give_back()

    def _give_back(self) -> None:
        if self._reservation is not None:
            self._reservation.close()

    def _consumed(self) -> Consumption:
        found = [self.used.get(identifier) for identifier in self.identifiers]
        known = [each for each in found if each is not None]
        if not known:
            return UNKNOWN
        prompts = [each for each in found[:: self.num_jobs] if each is not None]
        times = [(each.timings, each.new_tokens) for each in known if each.timings is not None]
        first = [timings.queue + timings.prefill for timings, num in times if num]
        reasons = dict.fromkeys(each.reason for each in known if each.reason is not None)
        return Consumption(
            max((timings.queue for timings, _ in times), default=None),
            min(first, default=None),
            sum(map(self._paid_prompt, known)),
            sum(each.cached_tokens for each in prompts),
            sum(each.new_tokens for each in known),
            ",".join(reasons) or None,
        )
