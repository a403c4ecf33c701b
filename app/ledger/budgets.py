"""Budgets of API keys, computed from the tokens in the ledger's daily sums and the tokens of
running requests.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta

from switchyard.app.exceptions import BudgetSpent
from switchyard.app.ledger.rows import day_of
from switchyard.app.operations.keys import ApiKey, BudgetPeriod

SUMS = """
SELECT key, total(tokens) FILTER (WHERE day = :day),
    total(tokens) FILTER (WHERE substr(day, 1, 7) = substr(:day, 1, 7)), total(tokens)
FROM (SELECT key, day, prompt_tokens + completion_tokens AS tokens FROM days) GROUP BY key
"""

PER: dict[BudgetPeriod | None, str] = {"day": " a day", "month": " a month", "total": " in all"}


class _Spent:
    """The tokens of one key's finished requests on its latest day, in that day's month, and in
    total.
    """

    __slots__ = ("_day", "_of_day", "_of_month", "_total")

    def __init__(self, day: str, of_day: int = 0, of_month: int = 0, total: int = 0) -> None:
        self._day, self._of_day, self._of_month, self._total = day, of_day, of_month, total

    def add(self, day: str, tokens: int) -> None:
        self._turn_to(day)
        self._of_day += tokens
        self._of_month += tokens
        self._total += tokens

    def within(self, period: BudgetPeriod | None, day: str) -> int:
        self._turn_to(day)
        if period == "day":
            return self._of_day
        return self._of_month if period == "month" else self._total

    def _turn_to(self, day: str) -> None:
        """Begins a new period if `day` is later. Setting the clock back does not begin a period."""
        if day > self._day:
            self._of_day = 0
            if day[:7] != self._day[:7]:
                self._of_month = 0
            self._day = day


class Budgets:
    """The budgets of all keys, keyed by name. The budgets are counted in memory; the file is read
    only once, at the start.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock  # a wall clock
        self._lock = threading.Lock()  # guards the fields below
        self._spent: dict[str, _Spent] = {}
        self._reserved: dict[str, int] = {}  # tokens reserved by running requests

    def load(self, connection: sqlite3.Connection) -> None:
        """Reads the sums of each key from the ledger's file. Raises sqlite3.Error."""
        day = day_of(self._clock())
        rows = connection.execute(SUMS, {"day": day}).fetchall()
        with self._lock:
            self._spent = {key: _Spent(day, *map(int, sums)) for key, *sums in rows}

    # Request thread

    def reserve(self, key: ApiKey, least: int, wanted: int) -> int:
        """Reserves `wanted` tokens of the key's budget, or as many as are left, and returns their
        number.

        Raises BudgetSpent if fewer than `least` are left.
        """
        now = self._clock()
        with self._lock:
            spent, reserved = self._used(key, now)
            left = _budget_of(key) - spent - reserved
            if left >= least:
                granted = min(wanted, left)
                self._reserved[key.name] = reserved + granted
                return granted
        raise BudgetSpent(_refusal(key, spent, reserved, least, now))

    # Link's thread

    def extend(self, key: ApiKey, wanted: int) -> int:
        """Reserves `wanted` more tokens, or as many as are left, and returns their number."""
        now = self._clock()
        with self._lock:
            spent, reserved = self._used(key, now)
            granted = max(min(wanted, _budget_of(key) - spent - reserved), 0)
            if granted:
                self._reserved[key.name] = reserved + granted
        return granted

    # Any thread

    def give_back(self, key: ApiKey, tokens: int) -> None:
        """Gives back reserved tokens."""
        with self._lock:
            left = self._reserved.pop(key.name, 0) - tokens
            if left:
                self._reserved[key.name] = left

    def add(self, name: str, tokens: int, ended: float) -> None:
        """Counts a request's tokens on the day on which it ended, as the ledger's file does."""
        day = day_of(ended)
        with self._lock:
            self._spent.setdefault(name, _Spent(day)).add(day, tokens)

    def spent(self, keys: Iterable[ApiKey]) -> list[tuple[ApiKey, int]]:
        """Each key that has a budget, with the tokens of the key's finished requests in its budget
        period.
        """
        now = self._clock()
        with self._lock:
            return [(key, self._used(key, now)[0]) for key in keys if key.budget_tokens is not None]

    # Called with the lock held

    def _used(self, key: ApiKey, now: float) -> tuple[int, int]:
        """The tokens of finished requests in the key's budget period, and the tokens that running
        requests have reserved.
        """
        spent = self._spent.get(key.name)
        tokens = 0 if spent is None else spent.within(key.budget_period, day_of(now))
        return tokens, self._reserved.get(key.name, 0)


def _budget_of(key: ApiKey) -> int:
    assert key.budget_tokens is not None
    return key.budget_tokens


def _refusal(key: ApiKey, spent: int, reserved: int, least: int, now: float) -> str:
    budget = _budget_of(key)
    text = (
        f"the API key {key.name} has used {spent} tokens of its budget of"
        f" {budget}{PER[key.budget_period]}"
    )
    if reserved:
        text += f", its running requests have reserved {reserved}"
    if spent + reserved < budget:
        text += f", and this request needs at least {least}"
    return text + _renewal(key.budget_period, now)


def _renewal(period: BudgetPeriod | None, now: float) -> str:
    if period == "total":
        return ""
    midnight = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if period == "month":
        midnight = midnight.replace(day=28) + timedelta(days=4)  # a day in the next month
        midnight = midnight.replace(day=1)
    else:
        midnight += timedelta(days=1)
    return f"; the budget starts again at {midnight:%Y-%m-%dT%H:%M:%SZ}"
