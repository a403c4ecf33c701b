"""Estimates the time to compile a client's constraint, because a compilation can't be stopped.

llguidance's own limits count steps, and one step may take seconds. Each figure was measured on a
server's CPU core, with inputs for which that figure dominates.
"""

import re

from switchyard.engine.errors import InvalidJob

MAX_SECONDS = 0.5

# Constraints on the same text. Each more than doubles the time.
MAX_CONJUNCTIONS = 8

# Optional parts, and parts with many states. A pattern's states are sets of these.
_OPTIONAL = re.compile(r"[*?]|\{\s*+[0,]|\\[pPwWDS]|[(|:]\||\|\)")
_PER_PAIR_OF_OPTIONAL = 3.3e-7


def seconds_of_regex(*patterns: str) -> float:
    """The estimated seconds for regular expressions that are joined into one."""
    number = sum(len(_OPTIONAL.findall(pattern)) for pattern in patterns)
    return number * number * _PER_PAIR_OF_OPTIONAL


def check_seconds(seconds: float) -> None:
    """Raises InvalidJob if the estimate is too high."""
    if seconds > MAX_SECONDS:
        raise InvalidJob(
            "the constraint would take too long to compile: it has too many parts, or too many"
            " optional parts",
            "constraint",
        )


class Estimate:
    """The estimated seconds of CPU time for one schema. The time for each part is added before the
    work on that part begins. Not thread-safe.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._known: set[str] = set()

    def add(self, seconds: float, where: str) -> None:
        """Raises InvalidJob, which reports the location of the part that exceeds the limit."""
        self.seconds += seconds
        if self.seconds > MAX_SECONDS:
            raise InvalidJob(
                f"the schema at #{where} is not supported: together with the parts before it, it"
                " would take too long to compile",
                "constraint",
            )

    def add_once(self, what: str, seconds: float, where: str) -> None:
        """Like `add`, but counts each `what` only once."""
        if what not in self._known:
            self._known.add(what)
            self.add(seconds, where)
