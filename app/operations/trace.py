"""The trace of a request, from W3C's `traceparent` header. Pure."""

import re
from typing import NamedTuple

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)


class Trace(NamedTuple):
    trace_id: str
    span_id: str


def parse_trace(header: str | None) -> Trace | None:
    """The trace in a header. None if the header has no trace, or if the specification says to
    ignore it.
    """
    match = _PARENT.fullmatch(header.strip()) if header else None
    if match is None:
        return None
    version, trace_id, span_id, rest = match.groups()
    is_zero = trace_id == "0" * 32 or span_id == "0" * 16
    if version == "ff" or is_zero or (version == "00" and rest):
        return None
    return Trace(trace_id, span_id)
