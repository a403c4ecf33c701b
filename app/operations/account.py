"""One request's account: which key pays for it, what its jobs have used, and when it is over."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from switchyard import engine
from switchyard.app.operations.keys import ApiKey
from switchyard.app.operations.limits import Quota

Phase = Literal["pending", "prefill", "decode"]

# What requests count for that no key pays for
HOST, NO_KEY = "host", "none"

ACCOUNT = "switchyard.account"  # in the environ of its request


def account_of(environ: Mapping[str, Any]) -> "Account | None":
    """Of the current request, if requests have accounts here at all."""
    account: Account | None = environ.get(ACCOUNT)
    return account


class Recorder(Protocol):
    """What keeps something of each request that has an account."""

    def begin(self, account: "Account") -> None:
        """Its jobs have been submitted. Request thread."""

    def end(self, account: "Account") -> None:
        """It is closed. Request thread or alarms'."""


@dataclass(frozen=True, slots=True)
class Consumption:
    """Of all jobs of a request, as its answer tells it. None where nothing is known. Seconds."""

    queue: float | None = None  # the longest
    first_token: float | None = None  # until the first of all, from the submission on
    prompt_tokens: int | None = None  # the prompt of several choices counts once
    cached_tokens: int | None = None  # of them
    new_tokens: int | None = None
    finish_reason: str | None = None  # with commas between those of several choices


UNKNOWN = Consumption()


class Account:
    """It is closed once the answer has ended and all jobs have, whichever comes last: those of a
    client that has left end later.
    """

    __slots__ = (
        "_firsts",
        "_is_answered",
        "_is_inside",
        "_lock",
        "_num_left",
        "_recorders",
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
        self.has_response = False  # that will be closed
        self.quota: Quota | None = None  # of its key
        self.model = ""
        self.is_streamed = False
        self.identifiers: Sequence[str] = ()  # of its jobs
        self.num_jobs = 1  # of each prompt
        self.prompt_tokens = 0  # of its prompts, each once
        self.tokens = 0  # used so far: of its prompts, and new ones
        self.used: dict[str, engine.Used] = {}  # by job, the latest
        self.consumption = UNKNOWN  # once it is closed
        self.said: dict[str, Any] = {}  # of the request, for the recorders
        self.is_quiet = False  # a probe, which nothing is told of
        self.num_bytes = 0  # of the answer's body
        self.gone: Phase | None = None  # what its jobs were at when its client left
        self.is_generation = False  # by its route
        self.is_host = False  # the host application's own
        self._firsts: frozenset[str] = frozenset()  # of each prompt's jobs
        self._recorders = recorders
        self._is_inside = False
        self._lock = threading.Lock()  # guards what follows
        self._num_left = 0  # jobs that have not ended
        self._is_answered = False

    # Request thread

    @property
    def key(self) -> ApiKey | None:
        return None if self.quota is None else self.quota.key

    @property
    def payer(self) -> str:
        """Whom it counts for, by name."""
        if self.is_host:
            return HOST
        return NO_KEY if self.key is None else self.key.name

    def another(self) -> "Account":
        """Of one generation of a connection that has several; its key is still to be found."""
        return Account(self._recorders)

    def enter(self) -> None:
        """Take a place among the requests of its key, which is given back in the end. Raises
        LimitReached.
        """
        assert self.quota is not None
        self.quota.enter()
        self._is_inside = True
        self.quota.count_request()

    def check_tokens(self) -> None:
        """Raises LimitReached, BudgetSpent."""
        if self._is_inside and self.quota is not None:
            self.quota.check_tokens()

    def expect(
        self, model: str, jobs: Sequence[engine.Job], num_jobs: int, is_streamed: bool
    ) -> None:
        """Jobs, before they are submitted: `num_jobs` of each prompt, in a row."""
        identifiers = [job.identifier for job in jobs]
        self.model, self.identifiers, self.num_jobs = model, identifiers, num_jobs
        self.is_streamed = is_streamed
        self._firsts = frozenset(identifiers[::num_jobs])
        self.prompt_tokens = sum(len(job.prompt) for job in jobs[::num_jobs])
        with self._lock:
            self._num_left += len(identifiers)

    def submitted(self) -> None:
        """Those jobs, in fact."""
        for recorder in self._recorders:
            recorder.begin(self)

    def withdraw(self) -> None:
        """They were refused."""
        with self._lock:
            self._num_left -= len(self.identifiers)
        self.identifiers = ()

    def sent(self, num_bytes: int) -> None:
        """Of the body."""
        self.num_bytes = num_bytes

    def leave(self, has_begun: bool) -> None:
        """The client has, before the end. `has_begun`: the answer."""
        self.gone = "decode" if has_begun else "prefill" if self.used else "pending"

    def answered(self) -> None:
        """Nothing more is written. Harmless when called again."""
        with self._lock:
            was_answered, self._is_answered = self._is_answered, True
            is_over = not (was_answered or self._num_left)
        if not was_answered:
            self.ended = time.monotonic()
        if is_over:
            self._close()

    # Link's thread

    def note(self, used: engine.Used) -> None:
        """Never waits for more than a few instructions of a request thread."""
        before = self.used.get(used.identifier)
        self.used[used.identifier] = used
        bucket = self.quota.tokens if self.quota is not None else None
        if bucket is not None:
            owed = used.computed_tokens + used.new_tokens
            if before is not None:
                owed -= before.computed_tokens + before.new_tokens
            bucket.owe(owed)
        self.tokens += used.new_tokens - (0 if before is None else before.new_tokens)
        if before is None and used.identifier in self._firsts:
            self.tokens += used.prompt_tokens
        if used.reason is not None:
            with self._lock:
                self._num_left -= 1
                is_over = self._is_answered and not self._num_left
            if is_over:
                engine.ALARMS.set(0.0, self._close)

    # Alarms' thread, or a request thread

    def _close(self) -> None:
        if self._is_inside and self.quota is not None:
            self._is_inside = False
            self.quota.leave()
        self.consumption = self._consumed()
        for recorder in self._recorders:
            recorder.end(self)

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
            sum(each.prompt_tokens for each in prompts),
            sum(each.cached_tokens for each in prompts),
            sum(each.new_tokens for each in known),
            ",".join(reasons) or None,
        )
