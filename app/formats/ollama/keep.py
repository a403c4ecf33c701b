"""Durations of `keep_alive`, as Go writes them. Pure."""

import re
from typing import Any

UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_UNIT = "ns|us|µs|ms|s|m|h"
_NUMBER = r"[0-9]{1,12}(?:\.[0-9]{0,12})?"
DURATION = rf"^[+-]?(?:{_NUMBER}|(?:{_NUMBER}(?:{_UNIT}))+)$"


def seconds(value: Any) -> Any:
    """The seconds in a duration such as `1h30m`, or in a string that gives a number of seconds.
    Values that aren't strings are returned unchanged. Raises ValueError for any other string.
    """
    if not isinstance(value, str):
        return value
    if not re.fullmatch(DURATION, value[:100]):
        raise ValueError("must be a number of seconds, or a duration such as 5m")
    parts = re.findall(rf"({_NUMBER})({_UNIT})", value)
    total = sum(float(n) * UNITS[unit] for n, unit in parts) if parts else abs(float(value))
    return -total if value.startswith("-") else total
