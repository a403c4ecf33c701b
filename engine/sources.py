"""Addresses of shared engines that name no engine, but a source which does. Pure."""

from collections.abc import Sequence

FILE, DNS = "file:", "dns:"
USUAL = 8  # engines of a source, for which a server has request threads


def is_source(at: str) -> bool:
    return at.startswith((FILE, DNS))


def count_engines(at: Sequence[str]) -> int:
    """Engines at these addresses. For a source, which may name any number: `USUAL`."""
    return sum(USUAL if is_source(one) else 1 for one in at)
