"""Times as Ollama's API writes them: in the format of RFC 3339, with nanoseconds. Pure."""

from datetime import UTC, datetime

NEVER = "2200-01-01T00:00:00.000000000Z"  # the expiry time of models that don't expire


def written(nanoseconds: int) -> str:
    """Formats a time that is given in nanoseconds since the epoch."""
    seconds, rest = divmod(nanoseconds, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def in_nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
