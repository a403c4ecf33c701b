"""The key of shared engines. Its holder may run code there."""

import os
import stat

from switchyard.engine.errors import ModelError

MIN_KEY = 32  # bytes
OTHERS = 0o007  # permission bits that must be off


def read_key(path: str | None) -> bytes:
    """The key; empty without a path. Raises ModelError."""
    if path is None:
        return b""
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            key = file.read(4096).strip()
    except OSError as reason:
        raise ModelError(f"engine_key_file {path}: {reason.strerror}", "engine_key_file") from None
    if mode & OTHERS:
        raise ModelError(
            f"engine_key_file {path} is open to others: chmod o= {path}", "engine_key_file"
        )
    if len(key) < MIN_KEY:
        raise ModelError(
            f"engine_key_file {path} has {len(key)} bytes, and must have {MIN_KEY}",
            "engine_key_file",
        )
    return key
