"""How long what a client writes may take to compile: estimated, since llguidance can't be stopped.

Its own limits count steps, and one step may take seconds. The figures were measured on a server's
core, each where it is the greatest part.
"""

import re

from switchyard.engine.errors import InvalidJob

MAX_SECONDS = 0.5

# What one text must match together: the time doubles, or worse, with each.
MAX_CONJUNCTIONS = 8

# What may be left out or takes many states: a pattern's states are sets of them.
_OPTIONAL = re.compile(r"[*?]|\{\s*+[0,]|\\[pPwWDS]|[(|:]\||\|\)")
_PER_PAIR_OF_OPTIONAL = 3.3e-7


def seconds_of_regex(*patterns: str) -> float:
    """Of regular expressions that are parts of one."""
    number = sum(len(_OPTIONAL.findall(pattern)) for pattern in patterns)
    return number * number * _PER_PAIR_OF_OPTIONAL


def check_seconds(seconds: float) -> None:
    """Raises InvalidJob."""
    if seconds > MAX_SECONDS:
        raise InvalidJob(
            "it would take too long to compile: it has too many parts, or too many that may be"
            " left out",
            "constraint",
        )
