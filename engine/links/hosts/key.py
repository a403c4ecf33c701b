"""The key of shared engines. Its holder may run code there."""

from switchyard.engine.errors import ModelError
from switchyard.files import read_file

MIN_KEY, MAX_KEY = 32, 4096  # bytes
OTHERS = 0o007  # permission bits that must be off


def read_key(path: str | None) -> bytes:
    """The key; empty without a path. Raises ModelError."""
    if path is None:
        return b""
    try:
        data, status = read_file(path, MAX_KEY)
    except OSError as reason:
        raise ModelError(f"engine_key_file {path}: {reason.strerror}", "engine_key_file") from None
    key = data.strip()
    if status.st_mode & OTHERS:
        raise ModelError(
            f"engine_key_file {path} is open to others: chmod o= {path}", "engine_key_file"
        )
    if len(key) < MIN_KEY:
        raise ModelError(
            f"engine_key_file {path} has {len(key)} bytes, and must have {MIN_KEY}",
            "engine_key_file",
        )
    return key
