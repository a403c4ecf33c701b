"""Limits of API keys: requests per minute, tokens per minute, concurrent requests."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple, Protocol

from switchyard import engine
from switchyard.app.exceptions import BadRequest, LimitReached
from switchyard.app.operations.keys import ApiKey

RETRY_CONCURRENCY = 1.0  # seconds; a guess, because the end of a running request is unknown

Clock = Callable[[], float]


class Level(NamedTuple):
    limit: int
    remaining: int
    reset: float  # seconds until the bucket is full again


class BudgetKeeper(Protocol):
    """Keeps the budgets of the keys that have one. Any thread may use the keeper; a call briefly
    holds a lock.
    """

    def reserve(self, key: ApiKey, least: int, wanted: int) -> int:
        """Reserves `wanted` tokens, or as many as are left, and returns their number.

        Raises BudgetSpent if fewer than `least` are left. The first call may wait for the disk.
        """

    def extend(self, key: ApiKey, wanted: int) -> int:
        """Reserves `wanted` more tokens, or as many as are left, and returns their number."""

    def give_back(self, key: ApiKey, tokens: int) -> None:
        """Gives back reserved tokens."""


class Bucket:
    """A token bucket that fills up within a minute. Its level may fall below 0, and then recovers
    over time. Running requests reserve a part of the level.
    """

    def __init__(self, size: int, clock: Clock) -> None:
        self.size = size
        self._clock = clock
        self._debts: deque[tuple[float, float, float]] = deque()  # time, amount, amount given back
        self._lock = threading.Lock()  # guards the fields below
        self._level = float(size)
        self._reserved = 0.0
        self._time = clock()

    # Any thread

    def owe(self, amount: float, given_back: float = 0) -> None:
        """Takes an amount that has already been used, even if the level falls below 0, and gives
        back a reserved amount. Never waits, because a link's thread calls it.
        """
        self._debts.append((self._clock(), amount, given_back))

    def take(self) -> float:
        """Takes one unit if one is available, and returns 0. Otherwise returns the seconds until
        one is available.
        """
        with self._lock:
            self._settle()
            if self._level >= 1:
                self._level -= 1
                return 0.0
            return self._seconds(1 - self._level)

    def reserve(self, amount: float) -> float:
        """Reserves an amount if it is available, and returns 0. Otherwise returns the seconds until
        the amount may be available. A full bucket allows an amount that exceeds its size.
        """
        with self._lock:
            self._settle()
            left = self._level - self._reserved
            missing = min(amount, self.size) - left
            if missing <= 0:
                self._reserved += amount
                return 0.0
            return max(self._seconds(missing), 0.001)

    def extend(self, wanted: int) -> int:
        """Reserves `wanted`, or as much as is available, and returns the amount."""
        with self._lock:
            self._settle()
            granted = max(min(wanted, math.floor(self._level - self._reserved)), 0)
            self._reserved += granted
            return granted

    def level(self) -> Level:
        with self._lock:
            self._settle()
            left = self._level - self._reserved
            return Level(self.size, max(math.floor(left), 0), self._seconds(self.size - left))

    def resize(self, size: int) -> None:
        """Changes the limit. The amount that has been used doesn't change."""
        with self._lock:
            self._settle()
            self._level = min(self._level + size - self.size, float(size))
            self.size = size

    # Called with the lock held

    def _settle(self) -> None:
        while self._debts:
            when, amount, given_back = self._debts.popleft()
            self._fill(when)
            self._level -= amount
            self._reserved -= given_back
        self._fill(self._clock())

    def _fill(self, now: float) -> None:
        if now > self._time:
            self._level = min(self._level + (now - self._time) * self.size / 60, float(self.size))
            self._time = now

    def _seconds(self, amount: float) -> float:
        return amount * 60 / self.size


class Quota:
    """The usage of one key. The usage is kept when the key's limits change while the server
    runs.
    """

    def __init__(
        self,
        key: ApiKey,
        usual: engine.UsualAnswers,
        clock: Clock = time.monotonic,
        budgets: BudgetKeeper | None = None,
    ) -> None:
        """`usual`: the typical answer lengths of all keys. `budgets`: None without a ledger."""
        self.usual = usual
        self.budgets = budgets
        self._clock = clock
        self.requests: Bucket | None = None
        self.tokens: Bucket | None = None
        self._lock = threading.Lock()  # guards the fields below
        self._num_requests = 0
        self.adapt(key)

    def adapt(self, key: ApiKey) -> None:
        """Adopts the limits of a changed entry."""
        self.key = key
        self.requests = self._resized(self.requests, key.rpm)
        self.tokens = self._resized(self.tokens, key.tpm)

    def enter(self) -> None:
        """Counts a concurrent request, until `leave`. Raises LimitReached."""
        most = self.key.concurrency
        with self._lock:
            if most is not None and self._num_requests >= most:
                raise reached(self.key, f"{most} requests at once", RETRY_CONCURRENCY)
            self._num_requests += 1

    def leave(self) -> None:
        with self._lock:
            self._num_requests -= 1

    def count_request(self) -> None:
        """Counts a request toward the limit per minute. Raises LimitReached."""
        if self.requests is not None and (seconds := self.requests.take()):
            raise reached(self.key, f"{self.requests.size} requests a minute", seconds)

    def levels(self) -> Iterator[tuple[str, Level]]:
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                yield name, bucket.level()

    def _resized(self, bucket: Bucket | None, size: int | None) -> Bucket | None:
        if size is None:
            return None
        if bucket is None:
            return Bucket(size, self._clock)
        if bucket.size != size:
            bucket.resize(size)
        return bucket


def reached(key: ApiKey, limit: str, seconds: float) -> LimitReached:
    return LimitReached(
        f"the API key {key.name} has reached its limit of {limit};"
        f" try again in {seconds:.3g} seconds",
        seconds,
    )


class Quotas:
    """The quotas of all keys that have been used, keyed by name. Thread-safe."""

    def __init__(self, clock: Clock = time.monotonic, budgets: BudgetKeeper | None = None) -> None:
        self._clock = clock
        self._budgets = budgets
        self._usual = engine.UsualAnswers()
        self._lock = threading.Lock()  # guards the fields below
        self._by_name: dict[str, Quota] = {}

    def of(self, key: ApiKey) -> Quota:
        with self._lock:
            quota = self._by_name.get(key.name)
            if quota is None:
                quota = Quota(key, self._usual, self._clock, self._budgets)
                self._by_name[key.name] = quota
            elif quota.key is not key:  # the key file has been read again
                quota.adapt(key)
            return quota

    def keep(self, names: Collection[str]) -> None:
        """Drops the quotas of all other keys. Running requests keep their quotas."""
        with self._lock:
            for name in self._by_name.keys() - set(names):
                del self._by_name[name]


def most_tokens(key: ApiKey, num_jobs: int) -> int | None:
    """The limit on new tokens for each job: the key's limit for a request, divided by the number of
    jobs.

    None without a limit. Raises BadRequest if there are more jobs than tokens.
    """
    if key.max_tokens is None:
        return None
    if num_jobs > key.max_tokens:
        raise BadRequest(
            f"n: {num_jobs} choices exceed the {key.max_tokens} tokens that this API key allows"
            " per request",
            "n",
        )
    return key.max_tokens // num_jobs


def priority_of(key: ApiKey, asked: int | None) -> int:
    """The priority of a request. If `asked` is None, this is the key's own priority. Raises
    BadRequest if `asked` is above the key's limit.
    """
    if asked is None:
        return key.priority
    most = key.max_priority
    if most is None and key.priority < 0:  # a key with a negative priority may not raise it
        most = key.priority
    if most is not None and asked > most:
        raise BadRequest(f"priority {asked} is above this API key's maximum, {most}", "priority")
    return asked
