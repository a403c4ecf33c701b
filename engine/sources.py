"""Addresses that name a source of shared engines instead of an engine. Does no I/O."""

from collections.abc import Sequence

FILE, DNS = "file:", "dns:"
USUAL = 8  # engines that a source is assumed to list, for the number of request threads


def is_source(at: str) -> bool:
    return at.startswith((FILE, DNS))


def count_engines(at: Sequence[str]) -> int:
    """The number of engines at these addresses. A source may list any number of engines, and counts
    as `USUAL` engines.
    """
    return sum(USUAL if is_source(one) else 1 for one in at)
